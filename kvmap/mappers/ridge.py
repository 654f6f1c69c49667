"""Ridge: each target layer's keys and values as an affine map of chosen source layers.

The closed-form mapper of the paper (seed 001), with a λ free of scale, and optionally reading keys
and values for each.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.mappers.reading import map_rows, read
from kvmap.moments import Calibration
from kvmap.selection import choose_layers, count_layers
from kvmap.solve import Inputs, candidates, input_kinds, solve


class Ridge(Mapper):
    """y = xᵀ W + b per target layer and kind, with W = (XᵀX + λΔ)⁻¹ XᵀY of centred rows.

    Args:
        source: the source's KV shape, or its three numbers.
        target: the target's KV shape, or its three numbers; widths may differ.
        k: number of source layers that a target layer reads, or ``all``.
        inputs: ``own`` reads keys for keys and values for values, ``both`` reads both for each.
        ridge_lambda: λ in units of the mean variance of a (source layer, kind) block, or ``auto``:
            per target layer and kind the decade of 1e-9 … 1e-1 best on the selection documents.

    Attributes:
        weight: ``[2, L_t, K, H_t * D_t]``, keys first; features ordered (kind, layer, head, dim).
        bias: ``[2, L_t, H_t * D_t]``.
        source_layers: ``[L_t, k]``, ascending.
        lambdas: ``[2, L_t]``, the λ that was used.

    Raises:
        KVMapError: k, inputs or ridge_lambda that do not fit.
    """

    weight: Tensor
    bias: Tensor
    source_layers: Tensor
    lambdas: Tensor

    def __init__(
        self,
        source: Sequence[int],
        target: Sequence[int],
        k: int | Literal["all"] = "all",
        inputs: Inputs = "both",
        ridge_lambda: float | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(source, target)
        candidates(ridge_lambda)
        self.k, self.inputs, self.ridge_lambda = k, inputs, ridge_lambda
        kinds = len(input_kinds(inputs)[0][0])
        count = count_layers(k, self.source_shape.layers)
        layers, width = self.target_shape.layers, self.target_shape.width
        read_width = kinds * count * self.source_shape.width
        # NaN until calibrated or loaded: forgetting is loud.
        self.register_buffer("weight", torch.full((2, layers, read_width, width), torch.nan))
        self.register_buffer("bias", torch.full((2, layers, width), torch.nan))
        self.register_buffer("source_layers", torch.zeros(layers, count, dtype=torch.int64))
        self.register_buffer("lambdas", torch.full((2, layers), torch.nan))

    def calibrate(self, calibration: Calibration) -> None:
        """Choose the source layers and solve."""
        chosen = choose_layers(calibration, self.k, self.inputs, self.ridge_lambda)
        solution = solve(calibration, chosen, self.inputs, self.ridge_lambda)
        self.source_layers.copy_(chosen)
        self.weight.copy_(solution.weight)
        self.bias.copy_(solution.bias)
        self.lambdas.copy_(solution.ridge_lambda)

    def map_table(self, table: Tensor) -> Tensor:
        """Rows ``[R, 2 * L_s * H_s * D_s]`` to ``[2, L_t, R, H_t * D_t]``, keys first."""
        layers, width = self.bias.shape[1:]
        mapped = table.new_empty(2, layers, len(table), width)
        for readers, solved in input_kinds(self.inputs):
            features = read(table, readers, self.source_layers, self.source_shape)
            for kind in solved:
                torch.baddbmm(
                    self.bias[kind, :, None], features, self.weight[kind], out=mapped[kind]
                )
        return mapped

    def forward(self, source: KV) -> KV:
        """Map KV ``[L_s, B, H_s, T, D_s]`` to ``[L_t, B, H_t, T, D_t]``; content keys."""
        return map_rows(source, self.target_shape, self.weight, self.map_table)
