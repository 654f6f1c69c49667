"""Causal attention of kept queries over a KV, one layer at a time."""

from typing import NamedTuple

import torch
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.kv import KV


class LayerAttention(NamedTuple):
    """One layer's queries beside the mapped and the exact KV that they read.

    Attributes:
        mapped: rotated keys and values from the mapper, each ``[B, H, T, D]``.
        exact: the target's own rotated keys and values, each ``[B, H, T, D]``.
        queries: the target's own rotated queries ``[B, G, Q, D]``.
        visible: ``[Q, T]`` bool, which key each query may read.
        scaling: what the model multiplies attention logits by.
    """

    mapped: KV
    exact: KV
    queries: Tensor
    visible: Tensor
    scaling: float


def widen(tensor: Tensor) -> Tensor:
    """The tensor in the dtype attention is computed in: float32; float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def visible_keys(query_positions: Tensor, positions: Tensor) -> Tensor:
    """Which kept token each query may read, ``[Q, T]`` bool: its own position and all before.

    Positions are compared, not indices, so kept tokens may be strided.

    Raises:
        KVMapError: a query stands before every kept token and would attend to nothing.
    """
    visible = positions[None, :] <= query_positions[:, None]
    if not bool(visible.any(-1).all()):
        raise KVMapError(
            f"a query at position {int(query_positions.min())} stands before the first kept token "
            f"at {int(positions.min())}; keep the tokens from the start of the document."
        )
    return visible


def group_queries(per_query_head: Tensor, heads: int) -> Tensor:
    """``[B, G, R, C]`` → ``[B, H, (G/H)·R, C]``: the rows that read one KV head, side by side.

    Query head g reads KV head g // (G/H), as everywhere in grouped-query attention.
    """
    batch, _, _, columns = per_query_head.shape
    return per_query_head.reshape(batch, heads, -1, columns)


def attention_weights(queries: Tensor, keys: Tensor, visible: Tensor, scaling: float) -> Tensor:
    """softmax(scaling · q·k) over the visible keys, ``[B, G, Q, T]`` in float32 or float64.

    Args:
        queries: ``[B, G, Q, D]``, rotated.
        keys: ``[B, H, T, D]``, rotated.
        visible: ``[Q, T]`` bool, of :func:`visible_keys`.
        scaling: factor on the logits.
    """
    logits = group_queries(widen(queries), keys.shape[1]) @ widen(keys).mT
    logits = logits.reshape(*queries.shape[:3], -1) * scaling
    return logits.masked_fill(~visible, -torch.inf).softmax(-1)


def attention_output(weights: Tensor, values: Tensor) -> Tensor:
    """Attention output before W_O, ``[B, G, Q, D]``.

    Args:
        weights: ``[B, G, Q, T]``, of :func:`attention_weights`.
        values: ``[B, H, T, D]``.
    """
    output = group_queries(weights, values.shape[1]) @ widen(values)
    return output.reshape(*weights.shape[:3], -1)
