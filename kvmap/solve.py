"""Ridge regression and its score, from moments alone.

With S = Δ^-½ XᵀX Δ^-½ (centred) the solution is W(λ) = Δ^-½ (S + λI)⁻¹ Δ^-½ XᵀY. Δ makes λ free
of scale: for each feature it is the mean diagonal of XᵀX over its (source layer, kind) block.
One factorisation serves all target layers that read the same source layers.
"""

import logging
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.features import KEYS, VALUES, columns
from kvmap.kv import KVShape
from kvmap.moments import Calibration, CentredMoments
from kvmap.scores import ROUNDING, affine_r2

Inputs = Literal["own", "both"]
AUTO_LAMBDAS = tuple(10.0**decade for decade in range(-9, 0))
# Rounding of a factorisation in float64 is far below the first, and a Gram that needs more than
# the last was summed wrongly.
JITTERS = tuple(10.0**decade for decade in range(-12, -3))

log = logging.getLogger(__name__)


class Solution(NamedTuple):
    """Affine maps y = xᵀ W + b of keys (first) and values, with what they are worth.

    Attributes:
        weight: ``[2, L_t, K, H_t * D_t]``; K = k * H_s * D_s, twice that if inputs are both.
        bias: ``[2, L_t, H_t * D_t]``.
        ridge_lambda: ``[2, L_t]`` the λ of each solve.
        r2: ``[2, L_t]`` R² on the selection documents, mean over heads.
    """

    weight: Tensor
    bias: Tensor
    ridge_lambda: Tensor
    r2: Tensor


def input_kinds(inputs: Inputs) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Which kinds are read for which: pairs of (kinds read, kinds solved for)."""
    if inputs not in get_args(Inputs):
        raise KVMapError(f"inputs={inputs} is unknown; use own or both")
    both = (KEYS, VALUES)
    return ((both, both),) if inputs == "both" else (((KEYS,), (KEYS,)), ((VALUES,), (VALUES,)))


def candidates(ridge_lambda: float | Literal["auto"]) -> tuple[float, ...]:
    """The λ to try: the decades 1e-9 … 1e-1 for ``auto``, else the given one."""
    if ridge_lambda == "auto":
        return AUTO_LAMBDAS
    try:
        value = float(ridge_lambda)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise KVMapError(f"ridge_lambda={ridge_lambda} is no lambda; use auto or a number >= 0")
    return (value,)


def solve(
    calibration: Calibration,
    source_layers: Tensor,
    inputs: Inputs,
    ridge_lambda: float | Literal["auto"],
) -> Solution:
    """Ridge maps of every target layer.

    Args:
        calibration: fit moments to solve on, selection moments to choose λ and to score on.
        source_layers: ``[L_t, k]`` layers that each target layer reads, ascending.
        inputs: ``own`` reads keys for keys and values for values, ``both`` reads both for each.
        ridge_lambda: λ, or ``auto``: per target layer and kind the one of :data:`AUTO_LAMBDAS`
            with the best R² on the selection documents (the smallest of equals).

    Raises:
        KVMapError: unknown inputs, a λ that is none, moments that cannot be used.
    """
    choices, group = torch.unique(source_layers, dim=0, return_inverse=True)
    whole: Solution | None = None
    # One choice at a time: at scale each has a Gram of gigabytes.
    for number, choice in enumerate(choices):
        members = torch.nonzero(group == number).flatten()
        part = solve_subset(calibration, choice, members, inputs, ridge_lambda)
        if len(choices) == 1:
            return part
        if whole is None:
            size = len(source_layers)
            whole = Solution(*(each.new_empty(2, size, *each.shape[2:]) for each in part))
        for rows, found in zip(whole, part, strict=True):
            rows[:, members] = found
    assert whole is not None
    return whole


def solve_subset(
    calibration: Calibration,
    source_layers: Tensor,
    target_layers: Tensor,
    inputs: Inputs,
    ridge_lambda: float | Literal["auto"],
) -> Solution:
    """As :func:`solve`, for the target layers ``[G]`` that all read the source layers ``[k]``."""
    lambdas = candidates(ridge_lambda)
    source, target = calibration.fit.source, calibration.fit.target
    parts = []
    for read, solved in input_kinds(inputs):
        x, y = columns(source, read, source_layers), columns(target, solved, target_layers)
        fit, selection = (moments.centred(x, y) for moments in calibration)
        parts.append(_best(fit, selection, source.width, target, len(solved), lambdas))
    if len(parts) == 1:
        return parts[0]
    return Solution(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _best(
    fit: CentredMoments,
    selection: CentredMoments,
    source_width: int,
    target: KVShape,
    kinds: int,
    lambdas: Sequence[float],
) -> Solution:
    """The best of some λ per target layer and kind, outputs ordered (kind, layer, head, dim)."""
    scale = _block_scale(fit, source_width)
    gram = fit.xx * scale * scale[:, None]
    # A block that never varies gets weight 0, whatever lambda.
    gram.diagonal().add_(scale == 0)
    best: list[Tensor] | None = None
    for ridge_lambda in lambdas:
        # The inverse is small beside the outputs, and saves copies of all cross products.
        inverse = torch.cholesky_inverse(_factor(gram, ridge_lambda))
        weight = fit.times_xy(inverse * scale * scale[:, None])
        bias = fit.mean_y - fit.mean_x @ weight
        r2 = affine_r2(selection, weight, bias, target.head_dim)
        r2 = r2.view(kinds, -1, target.heads).nanmean(-1)
        found = [
            weight.view(len(weight), kinds, -1, target.width).permute(1, 2, 0, 3),
            bias.view(kinds, -1, target.width),
            torch.full_like(r2, ridge_lambda),
            r2,
        ]
        if best is None:
            best = found
            continue
        better = found[3].nan_to_num(-math.inf) > best[3].nan_to_num(-math.inf)
        for old, new in zip(best, found, strict=True):
            old[better] = new[better]
    assert best is not None
    return Solution(*best)


def _block_scale(fit: CentredMoments, width: int) -> Tensor:
    """Diagonal of Δ^-½ ``[K]``: one number per (source layer, kind) block of ``width`` features."""
    diagonal = fit.xx.diagonal()
    block = diagonal.view(-1, width).mean(-1)
    raw = (diagonal + fit.n * fit.mean_x.square()).view(-1, width).mean(-1)
    scale = torch.where(block > ROUNDING * raw, block.rsqrt(), 0.0)
    return scale.repeat_interleave(width)


def _factor(gram: Tensor, ridge_lambda: float) -> Tensor:
    """Cholesky factor of ``gram + λI``; a Gram that rounding left indefinite gets a jitter."""
    for jitter in (0.0, *JITTERS):
        shifted = gram.clone()
        shifted.diagonal().add_(ridge_lambda + jitter)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed:
            if jitter:
                log.warning(
                    "the Gram matrix is not positive definite at lambda %g: added %g to its "
                    "unit diagonal",
                    ridge_lambda,
                    jitter,
                )
            return factor
    raise KVMapError(
        f"the Gram matrix is not positive definite at ridge_lambda={ridge_lambda}, not even with "
        f"{JITTERS[-1]:g} added; use a larger ridge_lambda or collect more rows"
    )
