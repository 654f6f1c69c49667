"""Features: the order in which KV of one token is written as one row."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvmap.kv import KV, KVShape

KEYS, VALUES = 0, 1


def columns(shape: KVShape, kinds: Sequence[int], layers: Tensor) -> Tensor:
    """Feature numbers of some kinds and layers in the order (kind, layer, head, dim).

    Args:
        shape: the model whose features they are.
        kinds: out of ``KEYS`` and ``VALUES``.
        layers: ``[..., k]`` integer layers.

    Returns:
        ``[..., len(kinds) * k * H * D]`` column numbers, kinds outermost.
    """
    kind = torch.as_tensor(list(kinds), device=layers.device)
    blocks = kind[:, None] * shape.layers + layers[..., None, :]
    within = torch.arange(shape.width, device=layers.device)
    return (blocks[..., None] * shape.width + within).flatten(-3)


def rows(kv: KV, documents: slice, tokens: slice, like: Tensor) -> Tensor:
    """Some documents' tokens as rows ``[B * T, 2 * L * H * D]``, dtype and device of ``like``."""
    keys, values = (part[:, documents, :, tokens] for part in kv)
    layers, batch, heads, length, dim = keys.shape
    table = like.new_empty(batch, length, 2, layers, heads, dim)
    table[:, :, KEYS].copy_(keys.permute(1, 3, 0, 2, 4))
    table[:, :, VALUES].copy_(values.permute(1, 3, 0, 2, 4))
    return table.view(batch * length, -1)


def take(tensor: Tensor, dim: int, index: Tensor | None, width: int = 1) -> Tensor:
    """Rows or columns of a tensor; a view where they are neighbours.

    Args:
        tensor: what to take from.
        dim: the dimension that ``index`` counts.
        index: what to take, in runs of ``width`` neighbours; everything without.
        width: as :func:`columns` makes them, H * D; long runs are copied fast.
    """
    if index is None:
        return tensor
    index = index.to(tensor.device)
    if bool((index.diff() == 1).all()):
        return tensor.narrow(dim, int(index[0]), len(index))
    blocks = index[::width] // width
    return tensor.unflatten(dim, (-1, width)).index_select(dim, blocks).flatten(dim, dim + 1)
