"""The shift test: does stripping really take the position out of a model's keys?

Rotary attention is relative, so the same tokens at positions p and p + 5 have the same content
keys. A wrong layout, a wrong frequency, a norm after the rotation or a layer without rotation all
show, and no list of architectures is needed.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvmap import cache
from kvmap.errors import KVMapError
from kvmap.rope import Rotary

SHIFT = 5
TOKENS = 16


def shift_error(model: PreTrainedModel, rotary: Rotary) -> Tensor:
    """Relative difference of content keys at p and p + 5, ``[L]``.

    About 1e-6 in float32 and 1e-2 in bfloat16 where the rotary is right, 0.5 and more where not.

    Args:
        model: with its weights.
        rotary: what strips this model's keys.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.get_decoder().config.vocab_size, (1, TOKENS), generator=generator)
    ids = ids.to(model.device)
    here = torch.arange(TOKENS, device=model.device)
    there = here + SHIFT
    first = rotary.strip(cache.prefill(model, ids, here).keys.float(), here)
    second = rotary.strip(cache.prefill(model, ids, there).keys.float(), there)
    return (first - second).flatten(1).norm(dim=1) / first.flatten(1).norm(dim=1)


def tolerance(dtype: torch.dtype) -> float:
    """The largest error that still counts as agreement, far from both sides."""
    return 1e-3 if dtype.itemsize >= 4 else 0.2


def require_strippable(model: PreTrainedModel, rotary: Rotary) -> float:
    """The worst layer's :func:`shift_error`, where it counts as agreement.

    Raises:
        KVMapError: when content keys depend on the position.
    """
    worst, layer = shift_error(model, rotary).max(dim=0)
    if not worst <= tolerance(model.dtype):
        raise KVMapError(
            f"content keys of model type '{rotary.config.model_type}' at positions p and p+{SHIFT} "
            f"differ by {worst:.0%} in layer {int(layer)}, so its rotation cannot be taken off; "
            "choose another model"
        )
    return float(worst)
