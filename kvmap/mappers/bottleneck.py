"""Bottleneck: one short code per token, from which every target layer reads its keys and values.

The target's layers say much the same of a token, so their ridge maps share a few hundred directions
(reduced-rank regression, Izenman 1975). Writing the code once and reading it L_t times costs a
fraction of the products of ridge; a ReLU layer beside the linear code buys back more than it loses.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvmap.arguments import require_step_size, require_whole
from kvmap.features import rows
from kvmap.kv import KV, KVPair
from kvmap.mappers.base import Mapper
from kvmap.mappers.reading import map_rows
from kvmap.mappers.standard import source_units, target_units
from kvmap.moments import Calibration
from kvmap.solve import candidates, solve


class Bottleneck(Mapper):
    """y = D z + b with the code z = P x + Q relu(A x + a), all in units of standard deviations.

    P and D start as the best rank-``code`` approximation of ridge over all source layers, keys and
    values both, in the sense of predicted variance; Q starts at zero. Then all learn by MSE.

    Args:
        source: The source's KV shape, or its three numbers.
        target: The target's KV shape, or its three numbers; widths may differ.
        code: Numbers in a token's code; no more than the source's features are used.
        hidden: ReLU units beside the linear code; 0 for none.
        lr: Adam's first step size; it falls to zero along a cosine.
        epochs: Passes over the fit rows.
        batch_size: Fit rows per step.
        ridge_lambda: λ of the ridge that is approximated, or ``auto``.

    Raises:
        KVMapError: An argument that does not fit.
    """

    gradient = True
    mean_x: Tensor
    std_x: Tensor
    mean_y: Tensor
    std_y: Tensor

    def __init__(
        self,
        source: Sequence[int],
        target: Sequence[int],
        code: int = 256,
        hidden: int = 256,
        lr: float = 1e-3,
        epochs: int = 12,
        batch_size: int = 1024,
        ridge_lambda: float | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(source, target)
        for name, number in {"code": code, "epochs": epochs, "batch_size": batch_size}.items():
            require_whole(f"mapper.{name}", number, 1)
        require_whole("mapper.hidden", hidden, 0)
        require_step_size("mapper.lr", lr)
        candidates(ridge_lambda)
        self.lr, self.epochs, self.batch_size = lr, epochs, batch_size
        self.ridge_lambda = ridge_lambda
        features = 2 * self.source_shape.layers * self.source_shape.width
        layers, width = self.target_shape.layers, self.target_shape.width
        code = min(code, features)
        self.linear = nn.Parameter(torch.full((features, code), torch.nan))
        self.bent_in = nn.Parameter(torch.randn(features, hidden) * math.sqrt(2 / features))
        self.bent_bias = nn.Parameter(torch.zeros(hidden))
        self.bent_out = nn.Parameter(torch.zeros(hidden, code))
        self.decode = nn.Parameter(torch.full((2 * layers, code, width), torch.nan))
        self.shift = nn.Parameter(torch.zeros(2 * layers, 1, width))
        for side, size in (("x", features), ("y", 2 * layers * width)):
            for name in ("mean", "std"):
                self.register_buffer(f"{name}_{side}", torch.full((size,), torch.nan))

    def calibrate(self, calibration: Calibration) -> None:
        """Solve ridge, and take its best approximation by a code."""
        fit = calibration.fit
        units = (*source_units(fit), *target_units(fit))
        buffers = (self.mean_x, self.std_x, self.mean_y, self.std_y)
        for buffer, values in zip(buffers, units, strict=True):
            buffer.copy_(values)
        _, std_x, _, std_y = units
        layers, width = self.target_shape.layers, self.target_shape.width
        every = torch.arange(self.source_shape.layers).expand(layers, -1)
        solution = solve(calibration, every, "both", self.ridge_lambda)
        weight = solution.weight.to(std_x) * std_x[:, None]  # [2, L_t, X, W]
        weight = weight / std_y.view(2, layers, 1, width)
        covariance = fit.centred().xx / fit.n / (std_x * std_x[:, None])
        flat = weight.permute(2, 0, 1, 3).flatten(1)
        linear, decode = _best_code(flat, covariance, self.linear.shape[1])
        with torch.no_grad():
            self.linear.copy_(linear)
            self.decode.copy_(decode.unflatten(1, (2 * layers, width)).transpose(0, 1))

    def code(self, table: Tensor) -> Tensor:
        """Codes ``[R, code]`` of rows ``[R, X]``."""
        table = (table - self.mean_x) / self.std_x
        code = table @ self.linear
        if self.bent_bias.numel():
            bent = F.relu(torch.addmm(self.bent_bias, table, self.bent_in))
            code = torch.addmm(code, bent, self.bent_out)
        return code

    def map_table(self, table: Tensor) -> Tensor:
        """Rows ``[R, X]`` to ``[2, L_t, R, H_t * D_t]``, keys first."""
        layers = self.target_shape.layers
        std, mean = (each.view(2 * layers, 1, -1) for each in (self.std_y, self.mean_y))
        code = self.code(table).expand(2 * layers, -1, -1)
        # Units are put back into the weights, which are few, and not into what they give.
        mapped = torch.baddbmm(mean + self.shift * std, code, self.decode * std)
        return mapped.unflatten(0, (2, layers))

    def forward(self, source: KV) -> KV:
        """Map KV ``[L_s, B, H_s, T, D_s]`` to ``[L_t, B, H_t, T, D_t]``; content keys."""
        return map_rows(source, self.target_shape, self.linear, self.map_table)

    def loss(self, pair: KVPair) -> Tensor:
        """Mean squared error over everything, in units of the target's standard deviations."""
        everything = slice(None), slice(None)
        code = self.code(rows(pair.source, *everything, self.linear))
        exact = rows(pair.target, *everything, self.linear)
        exact = ((exact - self.mean_y) / self.std_y).unflatten(1, (len(self.decode), -1))
        mapped = torch.baddbmm(self.shift, code.expand(len(self.decode), -1, -1), self.decode)
        return (mapped - exact.transpose(0, 1)).square().mean()

    def configure_optimizers(self) -> Any:
        """Adam, its step size falling along a cosine over all steps."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def _best_code(weight: Tensor, covariance: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """P and D whose product predicts most of the variance that a linear map predicts.

    Args:
        weight: ``[X, Y]``.
        covariance: Of x, ``[X, X]``.
        size: Rank of the product.

    Returns:
        P ``[X, size]``, whose codes are uncorrelated and of unit variance, and D ``[size, Y]``.
    """
    values, vectors = torch.linalg.eigh(covariance)
    root = values.clamp_min(1e-9 * values.max()).sqrt()
    spread = vectors * root  # covariance = spread spreadᵀ
    predicted = spread.T @ weight
    _, directions = torch.linalg.eigh(predicted @ predicted.T)
    best = directions[:, -size:].flip(1)
    return (vectors / root) @ best, best.T @ predicted
