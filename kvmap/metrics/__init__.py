"""The diagnostics of a mapped KV: each a torchmetrics metric with additive float64 states.

Every result is one number per target layer, does not depend on how the documents were batched,
and is summed over ranks by torchmetrics. Shape letters: :mod:`kvmap.kv`.
"""

from kvmap.metrics.attention_cosine import AttentionOutputCosine
from kvmap.metrics.key_error_concentration import KeyErrorConcentration
from kvmap.metrics.r2 import R2
from kvmap.metrics.value_error_concentration import ValueErrorConcentration

__all__ = ["R2", "AttentionOutputCosine", "KeyErrorConcentration", "ValueErrorConcentration"]
