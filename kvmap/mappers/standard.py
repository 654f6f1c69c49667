"""Units in which every feature counts alike."""

from torch import Tensor

from kvmap.moments import Moments


def source_units(fit: Moments) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the source's features over the fit rows, ``[X]`` each."""
    return _units(fit.sum_x / fit.n, fit.xx.diagonal() / fit.n)


def target_units(fit: Moments) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the target's, ``[Y]`` each."""
    return _units(fit.sum_y / fit.n, fit.yy / fit.n)


def _units(mean: Tensor, mean_square: Tensor) -> tuple[Tensor, Tensor]:
    """Deviations are 1 for what never varies."""
    variance = mean_square - mean.square()
    return mean, variance.where(variance > 1e-13 * mean_square, 1.0).sqrt()
