"""Tensor containers for KV, and the legend of shape letters used throughout kvmap.

Letters: ``L`` layers, ``B`` batch, ``H`` KV heads, ``G`` query heads, ``T`` tokens, ``P`` prompt
tokens, ``Q`` query positions, ``D`` head dim, ``N`` calibration rows, ``k`` source layers read by
one target layer. A suffix ``_s`` or ``_t`` means source or target.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class KVShape(NamedTuple):
    """What of a model decides the shape of its KV."""

    layers: int
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Numbers that one layer keeps per token for keys (and as many for values): H * D."""
        return self.heads * self.head_dim

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values of all layers for one token."""
        return 2 * self.layers * self.width * dtype.itemsize


class KV(NamedTuple):
    """Keys and values of all layers, each ``[L, B, H, T, D]``.

    Keys are content keys (their rotation stripped) unless a name says ``rotated``.
    """

    keys: Tensor
    values: Tensor

    @property
    def shape(self) -> KVShape:
        """Layers, heads and head dim; batch and tokens are not part of a model's shape."""
        layers, _, heads, _, head_dim = self.keys.shape
        return KVShape(layers, heads, head_dim)

    @property
    def tokens(self) -> int:
        """T."""
        return self.keys.shape[3]

    def to(self, *args: object, **kwargs: object) -> "KV":
        """Both tensors through :meth:`torch.Tensor.to`."""
        return KV(self.keys.to(*args, **kwargs), self.values.to(*args, **kwargs))  # type: ignore[call-overload]

    def select_tokens(self, tokens: Tensor | slice) -> "KV":
        """The KV of some tokens, ``[L, B, H, T', D]``; a slice gives views."""
        return KV(self.keys[:, :, :, tokens], self.values[:, :, :, tokens])


class KVPair(NamedTuple):
    """The two models' KV for the same tokens at the same positions."""

    source: KV
    target: KV


class KVBatch(NamedTuple):
    """Some documents of a collection, with what the diagnostics need.

    Attributes:
        pair: source and target KV, content keys, T kept tokens of each of B documents.
        positions: ``[T]`` positions of the kept tokens, ascending (all tokens: ``arange(T)``).
        queries: the target's rotated queries ``[L_t, B, G, Q, D_t]``; None outside development.
        query_positions: ``[Q]`` positions of those queries; None with ``queries``.
    """

    pair: KVPair
    positions: Tensor
    queries: Tensor | None = None
    query_positions: Tensor | None = None
