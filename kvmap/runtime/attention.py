"""Attention for few queries over a long cache, without copying the cache for every query group.

Where several query heads read one KV head and a mask is given, transformers' attention repeats
keys and values for each of them. Here the queries of a group stand behind one another instead, as
if they were further tokens: the same products, on KV as it lies in memory.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

NAME = "kvmap_grouped"
UNKNOWN = ("softcap", "s_aux", "position_bias")
PART = 256  # tokens of a part, for :func:`split`


def grouped(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """softmax(q kᵀ · scaling + mask) v.

    Args:
        module: The attention layer; its type decides nothing.
        query: ``[B, G, T, D]``, rotated.
        key: ``[B, H, S, D]``, rotated, the cache's included.
        value: ``[B, H, S, D]``.
        attention_mask: ``[1, 1, T, S]``, True where attended; None for one token that sees
            everything, or for a whole sequence that is causal.
        scaling: Factor of the logits.
        others: What transformers passes to every attention function.

    Returns:
        ``[B, T, G, D]``, and no weights.

    Raises:
        ValueError: The model asks for something that this function does not compute.
    """
    if asked := [name for name in UNKNOWN if others.get(name) is not None]:
        raise ValueError(f"attention with {', '.join(asked)} cannot run in kvmap's runtime")
    batch, queries, tokens, dim = query.shape
    heads = key.shape[1]
    if attention_mask is None and tokens > 1:
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=queries != heads
        )
        return out.transpose(1, 2), None
    if attention_mask is not None and tokens == 1 and key.is_cuda and key.shape[2] % PART == 0:
        return split(query, key, value, attention_mask, scaling).transpose(1, 2), None
    groups = queries // heads
    folded = query.reshape(batch, heads, groups * tokens, dim)
    if attention_mask is not None:
        attention_mask = attention_mask.repeat(1, 1, groups, 1)
    out = F.scaled_dot_product_attention(
        folded, key, value, attn_mask=attention_mask, scale=scaling
    )
    return out.view(batch, queries, tokens, -1).transpose(1, 2), None


def split(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float | None
) -> Tensor:
    """:func:`grouped` for one token under a mask, in parts of the cache that run side by side.

    PyTorch's fused attention under a mask gives a KV head's whole cache to one multiprocessor: with
    eight heads nearly all of a large GPU would wait. Here each part of a head's values is a product
    of its own, and the parts are added.

    Args:
        query: ``[B, G, 1, D]``, rotated.
        key: ``[B, H, S, D]``, rotated; S a multiple of :data:`PART`.
        value: ``[B, H, S, D]``.
        attention_mask: ``[1, 1, 1, S]``, True where attended.
        scaling: Factor of the logits; None for D ** -0.5.

    Returns:
        ``[B, G, 1, D]``.
    """
    batch, queries, _, dim = query.shape
    _, heads, slots, _ = key.shape
    groups, parts = queries // heads, slots // PART
    rows = query.reshape(batch * heads, groups, dim) * (dim**-0.5 if scaling is None else scaling)
    scores = torch.bmm(rows, key.reshape(batch * heads, slots, dim).transpose(1, 2)).float()
    scores.masked_fill_(~attention_mask[0], -torch.inf)
    weights = scores.softmax(-1).to(value.dtype).view(batch * heads, groups, parts, PART)
    shares = torch.bmm(
        weights.transpose(1, 2).reshape(-1, groups, PART), value.reshape(-1, PART, value.shape[-1])
    )
    out = shares.view(batch * heads, parts, groups, -1).sum(1, dtype=torch.float32)
    return out.to(value.dtype).view(batch, queries, 1, -1)


def use(model: PreTrainedModel) -> None:
    """Let a model attend so, where it would have used PyTorch's fused attention."""
    AttentionInterface.register(NAME, grouped)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def lower_right(tokens: int, total: int, device: torch.device) -> Tensor:
    """``[1, 1, T, S]``: the last of S positions are the T tokens, each sees all up to itself."""
    rows = torch.arange(total - tokens, total, device=device)
    return (torch.arange(total, device=device)[None] <= rows[:, None])[None, None]
