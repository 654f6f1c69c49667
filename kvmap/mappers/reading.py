"""What a learned mapper reads of the source: chosen layers, as rows, a bounded number at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from kvmap.features import KEYS, rows
from kvmap.kv import KV, KVShape

CHUNK_ROWS = 2048


def read(table: Tensor, kinds: tuple[int, ...], source_layers: Tensor, shape: KVShape) -> Tensor:
    """The features that each target layer reads, ordered (kind, layer, head, dim).

    Args:
        table: ``[R, 2 * L_s * H_s * D_s]`` rows of the source.
        kinds: the kinds read.
        source_layers: ``[L_t, k]``.
        shape: the source's.

    Returns:
        ``[L_t, R, K]``; one table seen L_t times where all layers are read.
    """
    layers, count = source_layers.shape
    blocks = table.view(len(table), 2, shape.layers, shape.width)[:, kinds[0] : kinds[-1] + 1]
    if count == shape.layers:
        return blocks.flatten(1).expand(layers, -1, -1)
    offsets = torch.arange(len(kinds), device=source_layers.device) * shape.layers
    chosen = (offsets[:, None] + source_layers[:, None]).flatten(1)
    return blocks.flatten(1, 2)[:, chosen].flatten(2).transpose(0, 1)


def map_rows(source: KV, target: KVShape, like: Tensor, mapping: Callable[[Tensor], Tensor]) -> KV:
    """Apply a map of rows to KV, in chunks of tokens so that memory does not grow with T.

    Args:
        source: ``[L_s, B, H_s, T, D_s]``, content keys.
        target: the target's shape.
        like: its dtype and device are those of the rows.
        mapping: ``[R, 2 * L_s * H_s * D_s]`` to ``[2, L_t, R, H_t * D_t]``.

    Returns:
        KV ``[L_t, B, H_t, T, D_t]`` in the dtype of the source's.
    """
    _, batch, _, tokens, _ = source.keys.shape
    layers, heads, dim = target
    step = max(1, CHUNK_ROWS // max(batch, 1))

    def chunk(start: int) -> Tensor:
        found = mapping(rows(source, slice(None), slice(start, start + step), like))
        return found.view(2, layers, batch, -1, heads, dim).transpose(3, 4)

    if tokens <= step:  # as it lies: who writes it on copies it anyway
        return KV(*chunk(0).to(source.keys.dtype).unbind())
    # Keys and values stand apart: a caller that keeps one does not keep the other alive.
    mapped = KV(*(part.new_empty(layers, batch, heads, tokens, dim) for part in source))
    for start in range(0, tokens, step):
        found = chunk(start)
        mapped.keys[:, :, :, start : start + step] = found[KEYS]
        mapped.values[:, :, :, start : start + step] = found[KEYS + 1]
    return mapped
