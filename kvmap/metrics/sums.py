"""What every diagnostic shares: float64 sums per head, and one mean over heads at the end."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class HeadRatio(Metric, ABC):
    """One ratio of sums per (layer, head), then the mean over a layer's heads.

    States are float64 and stay float64 whatever is done to the module that holds the metric:
    a trainer that casts it to bfloat16 moves the sums to the device and leaves them precise.
    """

    full_state_update = False
    higher_is_better: bool | None = None
    is_differentiable = False

    def add_sum(self, name: str, *shape: int) -> None:
        """Declare an additive state of zeros ``[*shape]``, summed over ranks."""
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> "Metric":
        def keep_float64(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if tensor.dtype == torch.float64 else moved

        return super()._apply(keep_float64, exclude_state)  # type: ignore[return-value]

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = super()._wrap_compute(compute)

        # torchmetrics makes a scalar of a result with one element; one layer is still a row.
        @functools.wraps(compute)
        def row() -> Tensor:
            return wrapped().reshape(-1)

        return row

    @abstractmethod
    def per_head(self) -> Tensor:
        """The diagnostic of every head, float64; NaN where it is not defined.

        It reads this rank's sums only; :meth:`compute` is what is summed over ranks.
        """

    @abstractmethod
    def defined(self) -> Tensor:
        """Which heads have a diagnostic at all (bool, the shape of :meth:`per_head`)."""

    def compute(self) -> Tensor:
        """Mean over the heads that have a diagnostic, ``[L]`` float64; NaN where none has.

        Only heads whose ratio is 0/0 are left out. A NaN that came in with the tensors (weights
        that were never filled, say) is a defined head's result and makes its layer NaN.
        """
        defined = self.defined()
        total = torch.where(defined, self.per_head(), 0.0).sum(-1)
        return total / defined.sum(-1)
