"""Muon: momentum whose matrices are orthogonalised before they are applied.

Keller Jordan et al., https://kellerjordan.github.io/posts/muon. Matrices of one shape are
orthogonalised together, as one batched product.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(stack: Tensor, steps: int = 5) -> Tensor:
    """Bring all singular values near 1 by a quintic Newton-Schulz iteration.

    Args:
        stack: matrices [n, rows, columns].
        steps: iterations.

    Returns:
        The same shape, in float32.
    """
    a, b, c = COEFFICIENTS
    wide = stack.shape[-2] <= stack.shape[-1]
    x = stack if wide else stack.mT
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).float()


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum for matrix parameters.

    Args:
        params: matrices only; embeddings and norms belong to AdamW.
        lr: step size, as the spectral norm of an update of a square matrix.
        momentum: decay of the running gradient.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                shapes[parameter.shape].append(parameter)
            for shape, parameters in shapes.items():
                updates = []
                for parameter in parameters:
                    if parameter.grad is None:
                        raise RuntimeError(f"a matrix of shape {tuple(shape)} has no gradient")
                    state = self.state[parameter]
                    if not state:
                        state["running"] = torch.zeros_like(parameter)
                    running = state["running"].lerp_(parameter.grad, 1 - group["momentum"])
                    updates.append(parameter.grad.lerp(running, group["momentum"]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                directions = orthogonalise(torch.stack(updates))
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.sub_(direction, alpha=scale)
