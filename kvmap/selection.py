"""Which source layers a target layer reads, and what more of them are worth."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.moments import Calibration
from kvmap.solve import Inputs, solve, solve_subset

CURVE_KS = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24)


class LayerR2(NamedTuple):
    """R² on the selection documents of maps that read one source layer, mean over target heads.

    Attributes:
        keys: ``[L_s, L_t]`` of content keys.
        values: ``[L_s, L_t]`` of values.
    """

    keys: Tensor
    values: Tensor


class KCurve(NamedTuple):
    """R² on the selection documents against k, mean over target layers.

    Attributes:
        ks: numbers of source layers read.
        keys: ``[len(ks)]`` of content keys.
        values: ``[len(ks)]`` of values.
    """

    ks: tuple[int, ...]
    keys: Tensor
    values: Tensor


def count_layers(k: int | Literal["all"], source_layers: int) -> int:
    """The number that ``k`` stands for.

    Raises:
        KVMapError: k is not ``all`` nor a number from 1 to the source's layers.
    """
    if k == "all":
        return source_layers
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= source_layers:
        raise KVMapError(
            f"k={k} but the source has {source_layers} layers; use 1 to {source_layers} or all"
        )
    return k


def single_layer_r2(
    calibration: Calibration, inputs: Inputs, ridge_lambda: float | Literal["auto"]
) -> LayerR2:
    """R² of every source layer alone for every target layer, from ridge with the same λ.

    With ``auto`` each single-layer map has the best λ of the grid for itself.
    """
    source, target = calibration.fit.source, calibration.fit.target
    everything = torch.arange(target.layers)
    scores = [
        solve_subset(calibration, torch.tensor([layer]), everything, inputs, ridge_lambda).r2
        for layer in range(source.layers)
    ]
    return LayerR2(*torch.stack(scores, 1))


def select(r2: LayerR2, k: int | Literal["all"]) -> Tensor:
    """The best k source layers of each target layer, ascending, ``[L_t, k]``.

    Ranked by the mean of keys and values; ties go to the lower layer.

    Raises:
        KVMapError: k does not fit the source.
    """
    score = (r2.keys + r2.values).nan_to_num(-math.inf).T
    count = count_layers(k, score.shape[1])
    ranked = torch.sort(score, dim=1, descending=True, stable=True).indices
    return ranked[:, :count].sort(1).values


def choose_layers(
    calibration: Calibration,
    k: int | Literal["all"],
    inputs: Inputs,
    ridge_lambda: float | Literal["auto"],
) -> Tensor:
    """The layers that a fit reads, ``[L_t, k]``; nothing is ranked where all are read."""
    source, target = calibration.fit.source, calibration.fit.target
    if count_layers(k, source.layers) == source.layers:
        return torch.arange(source.layers).expand(target.layers, -1)
    return select(single_layer_r2(calibration, inputs, ridge_lambda), k)


def curve_ks(source_layers: int) -> tuple[int, ...]:
    """The k of a curve: every one of a shallow source, thinned for a deep one, always all."""
    if source_layers <= 8:
        return tuple(range(1, source_layers + 1))
    return (*(k for k in CURVE_KS if k < source_layers), source_layers)


def r2_against_k(
    calibration: Calibration,
    inputs: Inputs,
    ridge_lambda: float | Literal["auto"],
    ks: tuple[int, ...] | None = None,
    r2: LayerR2 | None = None,
) -> KCurve:
    """R² on the selection documents for several k.

    Args:
        calibration: fit and selection moments.
        inputs: ``own`` or ``both``.
        ridge_lambda: λ or ``auto``.
        ks: the k to solve for; those of :func:`curve_ks` without.
        r2: the single-layer R², where it is known already; else it is computed.
    """
    ks = ks or curve_ks(calibration.fit.source.layers)
    r2 = r2 or single_layer_r2(calibration, inputs, ridge_lambda)
    scores = torch.stack(
        [solve(calibration, select(r2, k), inputs, ridge_lambda).r2.nanmean(1) for k in ks], 1
    )
    return KCurve(ks, *scores)
