"""Depth-nearest: the cache of the source layer at the same relative depth, unchanged.

The training-free mapper of seed 000; it shows what a learned one has to beat.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.kv import KV
from kvmap.mappers.base import Mapper


def nearest_layers(source_layers: int, target_layers: int) -> Tensor:
    """For each target layer l the source layer s with the least abs(s (L_t-1) - l (L_s-1)).

    In integers, so that ties are ties; they go to the lower layer, and a one-layer model on either
    side reads or gives layer 0.

    Returns:
        ``[L_t]`` int64.
    """
    source, target = torch.arange(source_layers), torch.arange(target_layers)
    if target_layers == 1:
        return torch.zeros(1, dtype=torch.int64)
    distance = (source * (target_layers - 1) - target[:, None] * (source_layers - 1)).abs()
    # A stable sort, since argmin does not say which of equals it takes.
    return distance.sort(dim=1, stable=True).indices[:, 0]


class DepthNearest(Mapper):
    """Target layer l reads the source layer of the nearest relative depth, head by head.

    Nothing is learned. Source and target must share KV heads and head dim.

    Args:
        source: the source's KV shape, or its three numbers.
        target: the target's KV shape, or its three numbers.

    Raises:
        KVMapError: KV heads or head dims differ.
    """

    source_layers: Tensor

    def __init__(self, source: Sequence[int], target: Sequence[int]) -> None:
        super().__init__(source, target)
        if self.source_shape[1:] != self.target_shape[1:]:
            raise KVMapError(
                f"depth_nearest needs equal KV heads and head dim, but the source has "
                f"{self.source_shape} and the target {self.target_shape}; use ridge or mlp"
            )
        layers = nearest_layers(self.source_shape.layers, self.target_shape.layers)
        self.register_buffer("source_layers", layers)

    def forward(self, source: KV) -> KV:
        """Copy layers: KV ``[L_s, B, H, T, D]`` to ``[L_t, B, H, T, D]``, content keys."""
        return KV(source.keys[self.source_layers], source.values[self.source_layers])
