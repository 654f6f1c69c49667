"""Value error concentration: do the errors of mapped values lie at tokens that are attended to?"""

import torch

from kvmap.metrics.attention import LayerAttention, attention_weights, widen
from kvmap.metrics.query_metric import QueryMetric, Terms


class ValueErrorConcentration(QueryMetric):
    """C_V per layer; 1 for errors spread evenly over tokens, above 1 at tokens that are read.

    For query head g and the KV head it reads, over documents d:
    ``C_V = Σ_d T_d Σ_t a_t ‖e_t‖² / Σ_d (Σ_t a_t)(Σ_t ‖e_t‖²)``, with e_t the mapped less the
    exact value of token t and a_t the squared exact attention weight on t, summed over queries.

    A head without any error has no concentration: NaN in :meth:`per_head`, left out of the mean
    over heads; a layer of such heads is NaN.
    """

    def terms(self, layer: LayerAttention) -> Terms:
        """Σ_d T_d Σ_t a_t ‖e_t‖² and Σ_d (Σ_t a_t)(Σ_t ‖e_t‖²), each ``[G]``."""
        weights = attention_weights(layer.queries, layer.exact.keys, layer.visible, layer.scaling)
        attention = weights.square_().sum(2, dtype=torch.float64)
        error = widen(layer.mapped.values) - widen(layer.exact.values)
        error_norm = error.square().sum(-1, dtype=torch.float64)

        per_group = attention.shape[1] // error_norm.shape[1]
        error_norm = error_norm.repeat_interleave(per_group, dim=1)
        read = error_norm.shape[-1] * (attention * error_norm).sum(-1)
        spread = attention.sum(-1) * error_norm.sum(-1)
        return Terms(read.sum(0), spread.sum(0))
