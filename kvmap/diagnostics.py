"""The diagnostics of a mapped cache, together: what is measured, and what comes out."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor, nn

from kvmap.kv import KV, KVBatch, KVShape
from kvmap.metrics import R2, AttentionOutputCosine, KeyErrorConcentration, ValueErrorConcentration
from kvmap.rope import Rotary


@dataclass(frozen=True)
class Diagnostics:
    """One number per target layer and diagnostic; ``nan`` where a diagnostic is undefined.

    Attributes:
        r2_keys: Content keys' R², mean over KV heads.
        r2_values: Values' R², mean over KV heads.
        attention_cosine: Cosine of attention output with mapped and with exact KV.
        key_error_concentration: C_K; above 1 the error lies where queries read.
        value_error_concentration: C_V, likewise for values.
    """

    r2_keys: list[float]
    r2_values: list[float]
    attention_cosine: list[float]
    key_error_concentration: list[float]
    value_error_concentration: list[float]

    @property
    def layers(self) -> int:
        """L_t."""
        return len(self.r2_keys)

    def means(self) -> dict[str, float]:
        """Mean over layers of each diagnostic under its logged name, ``val/<diagnostic>``."""
        return {f"val/{name}": _mean(values) for name, values in asdict(self).items()}

    @classmethod
    def names(cls) -> list[str]:
        """The diagnostics' names, in the order in which tables print them."""
        return [field.name for field in fields(cls)]


def _mean(values: Sequence[float]) -> float:
    """Mean of the defined entries; ``nan`` when no entry is defined."""
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


class DiagnosticMetrics(nn.Module):
    """Accumulates every diagnostic over the development documents.

    Args:
        shape: The target's KV shape.
        query_heads: G.
        rotary: The target's rotary embedding, applied to mapped and exact content keys.
        scaling: The target's attention scaling (usually 1/sqrt(D)).
    """

    def __init__(self, shape: KVShape, query_heads: int, rotary: Rotary, scaling: float) -> None:
        super().__init__()
        self.rotary = rotary
        self.scaling = scaling
        self.r2_keys = R2(shape)
        self.r2_values = R2(shape)
        self.attention_cosine = AttentionOutputCosine(shape.layers, query_heads)
        self.key_error_concentration = KeyErrorConcentration(shape.layers, query_heads)
        self.value_error_concentration = ValueErrorConcentration(shape.layers, query_heads)

    @torch.no_grad()
    def update(self, mapped: KV, batch: KVBatch) -> None:
        """Add the documents of one development batch, mapped KV against exact KV."""
        exact = batch.pair.target
        if batch.queries is None or batch.query_positions is None:
            raise ValueError("diagnostics need the development set's queries")
        self.r2_keys.update(mapped.keys, exact.keys)
        self.r2_values.update(mapped.values, exact.values)
        mapped_rotated, exact_rotated = (
            KV(self.rotary.apply(kv.keys, batch.positions), kv.values) for kv in (mapped, exact)
        )
        for metric in (
            self.attention_cosine,
            self.key_error_concentration,
            self.value_error_concentration,
        ):
            metric.update(
                mapped_rotated,
                exact_rotated,
                batch.queries,
                batch.query_positions,
                batch.positions,
                self.scaling,
            )

    def compute(self) -> Diagnostics:
        """The diagnostics of everything since the last :meth:`reset`."""
        return Diagnostics(
            **{name: _floats(getattr(self, name).compute()) for name in Diagnostics.names()}
        )

    def reset(self) -> None:
        """Forget all documents."""
        for name in Diagnostics.names():
            getattr(self, name).reset()


def _floats(values: Tensor) -> list[float]:
    return [float(value) for value in values]
