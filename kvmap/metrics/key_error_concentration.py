"""Key error concentration: do the errors of mapped keys lie where queries read?"""

import torch

from kvmap.metrics.attention import LayerAttention, group_queries, widen
from kvmap.metrics.query_metric import QueryMetric, Terms


class KeyErrorConcentration(QueryMetric):
    """C_K per layer; 1 for errors that favour no direction, above 1 where queries read.

    For query head g and the KV head it reads, over documents d:
    ``C_K = D · Σ_d ‖E_d Q_dᵀ‖_F² / Σ_d ‖E_d‖_F² ‖Q_d‖_F²``, with E_d ``[T, D]`` the mapped less
    the exact rotated keys and Q_d ``[Q, D]`` the rotated queries. This equals projecting E_d on
    Q_d's right singular vectors, weighing by their σ² and dividing by the mean weight.

    All T x Q products of a document count, also of keys later than the query: the SVD form knows
    no order either, so there is no causal mask, and positions and scaling play no part.

    A head without any error (or without queries that are not zero) has no concentration: NaN in
    :meth:`per_head`, left out of the mean over heads; a layer of such heads is NaN.
    """

    def terms(self, layer: LayerAttention) -> Terms:
        """D · Σ_d ‖E_d Q_dᵀ‖² and Σ_d ‖E_d‖² ‖Q_d‖², each ``[G]``."""
        error = widen(layer.mapped.keys) - widen(layer.exact.keys)
        queries = widen(layer.queries)
        batch, query_heads, _, head_dim = queries.shape
        logit_error = (group_queries(queries, error.shape[1]) @ error.mT).square_()
        read = logit_error.view(batch, query_heads, -1).sum(-1, dtype=torch.float64)

        error_norm = error.square().sum((2, 3), dtype=torch.float64)
        query_norm = queries.square().sum((2, 3), dtype=torch.float64)
        per_group = query_heads // error.shape[1]
        spread = error_norm.repeat_interleave(per_group, dim=1) * query_norm
        return Terms(head_dim * read.sum(0), spread.sum(0))
