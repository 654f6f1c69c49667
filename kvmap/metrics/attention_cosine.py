"""Attention-output cosine: does attention over the mapped KV point where it should?"""

import torch
from torch.nn.functional import cosine_similarity

from kvmap.metrics.attention import LayerAttention, attention_output, attention_weights
from kvmap.metrics.query_metric import QueryMetric, Terms


class AttentionOutputCosine(QueryMetric):
    """Cosine between attention outputs before W_O from mapped and from exact KV, per layer.

    Both outputs are softmax(scaling · q·k) v for the target's own queries, causal; the mapped one
    takes its weights and its values from the mapped KV. One cosine per query position and query
    head; every position weighs the same within a head, every head the same within a layer.
    An output of zero length has cosine 0.
    """

    higher_is_better = True

    def terms(self, layer: LayerAttention) -> Terms:
        """Sum of cosines and their number, each ``[G]``."""
        mapped, exact = (
            attention_output(
                attention_weights(layer.queries, kv.keys, layer.visible, layer.scaling), kv.values
            ).double()
            for kv in (layer.mapped, layer.exact)
        )
        cosine = cosine_similarity(mapped, exact, dim=-1)
        return Terms(cosine.sum((0, 2)), torch.ones_like(cosine).sum((0, 2)))
