"""Scores of affine maps straight from moments, without touching a token again."""

import torch
from torch import Tensor

from kvmap.moments import CentredMoments

# Sums of squares about a mean that are this small beside the plain ones are rounding, not variance.
ROUNDING = 1e-13


def affine_r2(moments: CentredMoments, weight: Tensor, bias: Tensor, head_dim: int) -> Tensor:
    """R² of y = xᵀ W + b on the rows of some moments, bias included.

    SSE = Σy² - 2 Σ W∘XᵀY + Σ W∘(XᵀX W) about these rows' own means, plus N times the square of
    the mean residual. SSE and SST are each summed over a head's D dimensions before the division.

    Args:
        moments: of K source and O target columns.
        weight: ``[K, O]``.
        bias: ``[O]``.
        head_dim: D; every D neighbouring outputs are a head.

    Returns:
        ``[O / D]`` R² per head; NaN where the head never varies.
    """
    from_means = moments.mean_x @ weight
    offset = moments.mean_y - from_means - bias
    product = _quadratic(moments, weight)
    product += 2 * moments.n * from_means * moments.mean_y  # centres the cross products
    sse = moments.yy + product + moments.n * offset.square()
    sse, sst, raw = (
        total.view(-1, head_dim).sum(-1) for total in (sse, moments.yy, moments.raw_yy)
    )
    return torch.where(sst > ROUNDING * raw, 1 - sse / sst, torch.nan)


def _quadratic(moments: CentredMoments, weight: Tensor) -> Tensor:
    """Σ W∘(XᵀX W - 2 Σ x yᵀ) over features, ``[O]``.

    XᵀX is symmetric: its lower left block is never multiplied.
    """
    half = len(weight) // 2
    xx, xy = moments.xx, moments.raw_xy
    upper = torch.addmm(xy[:half], xx[:half, :half], weight[:half], beta=-2)
    upper.addmm_(xx[:half, half:], weight[half:], alpha=2)
    lower = torch.addmm(xy[half:], xx[half:, half:], weight[half:], beta=-2)
    return upper.mul_(weight[:half]).sum(0) + lower.mul_(weight[half:]).sum(0)
