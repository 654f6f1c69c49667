"""MLP: one small ReLU network per target layer, head, and keys or values.

The paper's answer (seed 001) to pairs on which ridge fails; here optionally as a residual on ridge.
All networks train together as batched products.
"""

import logging
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvmap.arguments import require_step_size, require_whole
from kvmap.features import rows
from kvmap.kv import KV, KVPair
from kvmap.mappers.base import Mapper
from kvmap.mappers.reading import map_rows, read
from kvmap.mappers.ridge import Ridge
from kvmap.mappers.standard import source_units, target_units
from kvmap.moments import Calibration, Moments
from kvmap.selection import choose_layers, count_layers
from kvmap.solve import Inputs, candidates, input_kinds

log = logging.getLogger(__name__)
LARGE = 100_000_000


class MLP(Mapper):
    """ReLU networks on inputs and targets standardised with the fit moments; MSE in those units.

    Args:
        source: the source's KV shape, or its three numbers.
        target: the target's KV shape, or its three numbers; widths may differ.
        hidden: units of a hidden layer.
        depth: hidden layers, at least 1.
        lr: Adam's step size.
        epochs: passes over the fit rows.
        batch_size: fit rows per step.
        residual: start from the ridge solution, kept frozen, and learn what it leaves; the last
            layer starts at zero, so before training this is ridge exactly.
        k: number of source layers that a target layer reads, or ``all``.
        inputs: ``own`` reads keys for keys and values for values, ``both`` reads both for each.
        ridge_lambda: of the ridge that ranks layers and, with ``residual``, is the start.

    Raises:
        KVMapError: an argument that does not fit.
    """

    gradient = True
    source_layers: Tensor
    mean_x: Tensor
    std_x: Tensor
    mean_y: Tensor
    std_y: Tensor

    def __init__(
        self,
        source: Sequence[int],
        target: Sequence[int],
        hidden: int = 32,
        depth: int = 2,
        lr: float = 1e-3,
        epochs: int = 5,
        batch_size: int = 1024,
        residual: bool = True,
        k: int | Literal["all"] = "all",
        inputs: Inputs = "both",
        ridge_lambda: float | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(source, target)
        numbers = {"hidden": hidden, "depth": depth, "epochs": epochs, "batch_size": batch_size}
        for name, number in numbers.items():
            require_whole(f"mapper.{name}", number, 1)
        require_step_size("mapper.lr", lr)
        candidates(ridge_lambda)
        self.lr, self.epochs, self.batch_size = lr, epochs, batch_size
        self.k, self.inputs, self.ridge_lambda = k, inputs, ridge_lambda
        kinds = len(input_kinds(inputs)[0][0])
        count = count_layers(k, self.source_shape.layers)
        layers, heads, dim = self.target_shape
        read_width = kinds * count * self.source_shape.width
        per_network = (read_width + 1 + (depth - 1) * (hidden + 1)) * hidden + (hidden + 1) * dim
        total = 2 * layers * heads * per_network
        if total > LARGE:
            log.warning(
                "mlp: %.2f billion parameters; float32 weights, gradients and Adam take %.1f GiB",
                total / 1e9,
                16 * total / 2**30,
            )
        # Heads of a layer share their inputs: their first layers stand side by side in one product.
        self.first = _weight(2, layers, read_width, heads * hidden)
        self.first_bias = nn.Parameter(torch.zeros(2, layers, 1, heads * hidden))
        sizes = [hidden] * depth + [dim]
        self.later = nn.ParameterList(_weight(2, layers, heads, a, b) for a, b in pairwise(sizes))
        self.later_bias = nn.ParameterList(
            nn.Parameter(torch.zeros(2, layers, heads, 1, b)) for b in sizes[1:]
        )
        self.ridge = Ridge(source, target, k, inputs, ridge_lambda) if residual else None
        if residual:
            nn.init.zeros_(self.later[-1])
        self.register_buffer("source_layers", torch.zeros(layers, count, dtype=torch.int64))
        for side, shape in (("x", self.source_shape), ("y", self.target_shape)):
            for name in ("mean", "std"):
                empty = torch.full((2 * shape.layers * shape.width,), torch.nan)
                self.register_buffer(f"{name}_{side}", empty)

    def calibrate(self, calibration: Calibration) -> None:
        """Standardise with the fit moments, choose the source layers, solve ridge if it is used."""
        self._standardise(calibration.fit)
        if self.ridge is not None:
            self.ridge.calibrate(calibration)
            self.source_layers.copy_(self.ridge.source_layers)
        else:
            chosen = choose_layers(calibration, self.k, self.inputs, self.ridge_lambda)
            self.source_layers.copy_(chosen)

    def _standardise(self, fit: Moments) -> None:
        units = (*source_units(fit), *target_units(fit))
        buffers = (self.mean_x, self.std_x, self.mean_y, self.std_y)
        for buffer, values in zip(buffers, units, strict=True):
            buffer.copy_(values)

    def networks(self, table: Tensor) -> Tensor:
        """What the networks add: rows ``[R, X]`` to ``[2, L_t, R, H_t * D_t]``, standardised."""
        table = (table - self.mean_x) / self.std_x
        outputs = []
        for readers, solved in input_kinds(self.inputs):
            features = read(table, readers, self.source_layers, self.source_shape)
            outputs += [self._network(kind, features) for kind in solved]
        return torch.stack(outputs)

    def _network(self, kind: int, features: Tensor) -> Tensor:
        hidden = torch.baddbmm(self.first_bias[kind], features, self.first[kind])
        hidden = hidden.unflatten(-1, (self.target_shape.heads, -1)).transpose(1, 2)
        for weight, bias in zip(self.later, self.later_bias, strict=True):
            hidden = F.relu(hidden) @ weight[kind] + bias[kind]
        return hidden.transpose(1, 2).flatten(2)

    def map_table(self, table: Tensor) -> Tensor:
        """Rows ``[R, 2 * L_s * H_s * D_s]`` to ``[2, L_t, R, H_t * D_t]``, keys first."""
        added = self.networks(table) * self._per_layer(self.std_y)
        start = self._per_layer(self.mean_y) if self.ridge is None else self.ridge.map_table(table)
        return start + added

    def _per_layer(self, outputs: Tensor) -> Tensor:
        return outputs.view(2, self.target_shape.layers, 1, -1)

    def forward(self, source: KV) -> KV:
        """Map KV ``[L_s, B, H_s, T, D_s]`` to ``[L_t, B, H_t, T, D_t]``; content keys."""
        return map_rows(source, self.target_shape, self.first, self.map_table)

    def loss(self, pair: KVPair) -> Tensor:
        """Mean squared error over everything, targets in units of their standard deviation."""
        everything = slice(None), slice(None)
        mapped = self.map_table(rows(pair.source, *everything, self.first))
        exact = rows(pair.target, *everything, self.first)
        exact = exact.unflatten(1, (2, self.target_shape.layers, -1)).permute(1, 2, 0, 3)
        return ((mapped - exact) / self._per_layer(self.std_y)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as in the paper."""
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def _weight(*size: int) -> nn.Parameter:
    """He's uniform initialisation for ReLU; the last but one dimension is the fan-in."""
    bound = math.sqrt(6 / size[-2])
    return nn.Parameter(torch.empty(size).uniform_(-bound, bound))
