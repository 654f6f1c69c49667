"""Up to which length a pair was trained: beyond it only speed means something."""

from kvmap.loading import PREFIX
from kvmap.pair import ModelPair

EMBEDDED = 2048
"""Tokens of the embedded pair's longest training texts; its positions go on to 8,192."""


def trained_context(pair: ModelPair) -> int:
    """Most tokens that both models were trained on.

    A published model is taken to be trained on all positions that its configuration names.
    """
    return min(
        EMBEDDED if side.spec.model.startswith(PREFIX) else int(side.config.max_position_embeddings)
        for side in (pair.source, pair.target)
    )
