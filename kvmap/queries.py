"""The target's own queries, rotated, seen while it prefills."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvmap import cache
from kvmap.kv import KV

_seen: ContextVar[list[Tensor]] = ContextVar("seen")
_wanted: ContextVar[Tensor] = ContextVar("wanted")


def _attend_and_keep(
    module: nn.Module, query: Tensor, *args: object, **kwargs: object
) -> tuple[Tensor, Tensor | None]:
    """Transformers' SDPA attention, which notes the wanted queries in passing."""
    _seen.get().append(query[:, :, _wanted.get().to(query.device)])
    return sdpa_attention_forward(module, query, *args, **kwargs)  # type: ignore[arg-type]


AttentionInterface.register("kvmap_queries", _attend_and_keep)
# Without a mask function of the same name transformers would build no mask at all.
AttentionMaskInterface.register("kvmap_queries", sdpa_mask)


@contextmanager
def _keeping(model: PreTrainedModel, query_positions: Tensor) -> Iterator[list[Tensor]]:
    usual = model.config._attn_implementation
    seen: list[Tensor] = []
    tokens = (_seen.set(seen), _wanted.set(query_positions))
    model.set_attn_implementation("kvmap_queries")
    try:
        yield seen
    finally:
        model.set_attn_implementation(usual)
        _seen.reset(tokens[0])
        _wanted.reset(tokens[1])


def prefill_with_queries(
    model: PreTrainedModel, input_ids: Tensor, query_positions: Tensor
) -> tuple[KV, Tensor]:
    """The model's rotated KV, and its queries at some positions.

    Args:
        model: where to run.
        input_ids: ``[B, T]``.
        query_positions: ``[Q]``, indices of tokens.

    Returns:
        Rotated KV ``[L, B, H, T, D]``, and the queries as they enter q·k (after norm, rotation
        and any scaling by position) ``[L, B, G, Q, D]``.
    """
    with _keeping(model, query_positions) as seen:
        kv = cache.prefill(model, input_ids)
    return kv, torch.stack(seen)
