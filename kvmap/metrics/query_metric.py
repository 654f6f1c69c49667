"""The mechanics of the diagnostics that look at a KV through the target's own queries."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.kv import KV
from kvmap.metrics.attention import LayerAttention, visible_keys
from kvmap.metrics.sums import HeadRatio


class Terms(NamedTuple):
    """What one layer of one batch adds to the two sums of a ratio, each ``[G]`` float64."""

    numerator: Tensor
    denominator: Tensor


class QueryMetric(HeadRatio):
    """Σ numerator / Σ denominator per (layer, query head), summed over documents.

    A subclass writes :meth:`terms` for one layer; this class checks shapes, walks over layers
    (so that one layer's attention ``[B, G, Q, T]`` is all that is held at a time) and sums.

    Args:
        layers: L of the target.
        query_heads: G of the target.
    """

    numerator: Tensor
    denominator: Tensor

    def __init__(self, layers: int, query_heads: int) -> None:
        super().__init__()
        self.layers = layers
        self.query_heads = query_heads
        self.add_sum("numerator", layers, query_heads)
        self.add_sum("denominator", layers, query_heads)

    @abstractmethod
    def terms(self, layer: LayerAttention) -> Terms:
        """One layer's contribution, summed over the batch's documents."""

    def update(
        self,
        mapped: KV,
        exact: KV,
        queries: Tensor,
        query_positions: Tensor,
        positions: Tensor,
        scaling: float,
    ) -> None:
        """Add some documents.

        Args:
            mapped: the mapper's KV, keys rotated, each ``[L, B, H, T, D]``.
            exact: the target's own KV, keys rotated, same shape.
            queries: the target's own rotated queries ``[L, B, G, Q, D]``.
            query_positions: ``[Q]`` their positions.
            positions: ``[T]`` positions of the kept tokens; they may be strided.
            scaling: what the target multiplies attention logits by.

        Raises:
            KVMapError: shapes do not fit one another, or a query has no key to read.
        """
        self._check(mapped, exact, queries, query_positions, positions)
        visible = visible_keys(query_positions, positions).to(queries.device)
        added = [
            self.terms(
                LayerAttention(
                    KV(mapped.keys[layer], mapped.values[layer]),
                    KV(exact.keys[layer], exact.values[layer]),
                    queries[layer],
                    visible,
                    scaling,
                )
            )
            for layer in range(self.layers)
        ]
        self.numerator = self.numerator + torch.stack([term.numerator for term in added])
        self.denominator = self.denominator + torch.stack([term.denominator for term in added])

    def defined(self) -> Tensor:
        """Heads whose ratio is not 0/0, ``[L, G]`` bool."""
        return self.denominator != 0

    def per_head(self) -> Tensor:
        """The ratio of every query head, ``[L, G]`` float64; NaN where it is 0/0."""
        return torch.where(self.defined(), self.numerator / self.denominator, torch.nan)

    def _check(
        self, mapped: KV, exact: KV, queries: Tensor, query_positions: Tensor, positions: Tensor
    ) -> None:
        name = type(self).__name__
        shapes = {tuple(tensor.shape) for tensor in (*mapped, *exact)}
        if len(shapes) != 1:
            raise KVMapError(
                f"{name} needs mapped and exact keys and values of one shape and got "
                f"{sorted(shapes)}."
            )
        layers, batch, heads, tokens, head_dim = exact.keys.shape
        wanted = (self.layers, batch, self.query_heads, len(query_positions), head_dim)
        if layers != self.layers or tuple(queries.shape) != wanted:
            raise KVMapError(
                f"{name} was made for {self.layers} layers and {self.query_heads} query heads and "
                f"got KV {tuple(exact.keys.shape)} with queries {tuple(queries.shape)} at "
                f"{len(query_positions)} positions; queries must be {wanted}."
            )
        if self.query_heads % heads:
            raise KVMapError(
                f"{name} cannot share {heads} KV heads evenly among {self.query_heads} query heads."
            )
        if len(positions) != tokens:
            raise KVMapError(f"{name} got {len(positions)} positions for {tokens} kept tokens.")
