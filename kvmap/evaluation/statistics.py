"""How sure a number is: bootstrap by document, exact McNemar, and the ratios that they bound.

Documents, not items, are drawn: items of one document share its facts. Every statistic is a
function of sums over documents, ``[..., m]`` for m sums, so that a resample is one matrix product
and ratios are divided once (a ratio of means is not a mean of ratios).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
RESAMPLES = 2000
LEAST_GAP = 0.05
"""Nats/token between source and target below which a share of the gap says nothing."""

LEAST_DOCUMENTS = 6
"""Documents below which even their whole range bounds a median less often than 95% of the time."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval.

    Attributes:
        value: The statistic of all documents.
        low: 2.5th percentile of the statistic over resampled documents.
        high: 97.5th percentile.
        documents: How many documents were drawn from.
    """

    value: float
    low: float
    high: float
    documents: int

    def __str__(self) -> str:
        """The value and its interval, three decimals."""
        return self.told(3)

    def told(self, digits: int) -> str:
        """The value and its interval, or how few documents there are where they bound nothing."""
        value, low, high = (f"{x:.{digits}f}" for x in (self.value, self.low, self.high))
        if self.documents < LEAST_DOCUMENTS:
            return f"{value} (of {self.documents})"
        return f"{value} [{low}, {high}]"


@dataclass(frozen=True)
class Curve:
    """An estimate at each of several places.

    Attributes:
        values: The statistic of all documents at each place.
        low: 2.5th percentiles.
        high: 97.5th percentiles.
    """

    values: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class McNemar:
    """Two arms on the same items, compared where exactly one of them is right.

    Attributes:
        gained: Items that only the arm answered right.
        lost: Items that only the other answered right.
        p: Two-sided exact p-value: the chance of a split at least as uneven if both were equal.
    """

    gained: int
    lost: int
    p: float


def bootstrap(
    sums: Array, statistic: Statistic, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate | None:
    """Percentile interval over documents drawn with replacement.

    One seed draws the same documents for every statistic of as many documents: intervals of
    differences are paired.

    Args:
        sums: ``[n, m]``, what each document adds to each sum.
        statistic: From sums ``[..., m]`` to ``[...]``; NaN where it is not defined.
        seed: Of the draws.
        resamples: How many draws.

    Returns:
        None where the statistic of all documents is not defined.
    """
    value = float(statistic(sums.sum(0)))
    if not np.isfinite(value):
        return None
    drawn = statistic(_counts(len(sums), seed, resamples) @ sums)
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return Estimate(value, float(low), float(high), len(sums))


def bootstrap_means(table: Array, seed: int = 0, resamples: int = RESAMPLES) -> Curve:
    """Mean over documents of each column of ``[n, places]``, with intervals."""
    documents = len(table)
    drawn = _counts(documents, seed, resamples) @ table / documents
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    return Curve(table.mean(0).tolist(), low.tolist(), high.tolist())


def mcnemar(arm: NDArray[np.bool_], other: NDArray[np.bool_]) -> McNemar:
    """McNemar's test as an exact binomial test of the discordant items.

    Args:
        arm: Whether the arm is right, per item.
        other: The same for the other arm, same items.
    """
    gained, lost = int((arm & ~other).sum()), int((~arm & other).sum())
    return McNemar(gained, lost, binomial_p(gained, lost))


def binomial_p(gained: int, lost: int) -> float:
    """``min(1, 2 Σ_{i ≤ min} C(n, i) / 2^n)`` for n discordant items."""
    items = gained + lost
    tail = sum(comb(items, i) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**items)


def share(sums: Array) -> Array:
    """First sum / second sum: a mean, an accuracy, a mean over tokens."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[..., 0] / sums[..., 1]


def difference(sums: Array) -> Array:
    """(First sum - second sum) / third sum, as in nats/token between two arms."""
    return (sums[..., 0] - sums[..., 1]) / sums[..., 2]


def floor_normalised(chance: float) -> Statistic:
    """(acc - chance) / (acc_target - chance), of sums (arm's hits, target's hits, items).

    With ``chance = 0`` this is retention. Undefined where the target is not above chance.
    """

    def statistic(sums: Array) -> Array:
        floor = chance * sums[..., 2]
        above = sums[..., 1] - floor
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(above > 0, (sums[..., 0] - floor) / above, np.nan)

    return statistic


def recovered(least: float) -> Statistic:
    """(NLL_worst - NLL_arm) / (NLL_worst - NLL_target), of sums (worst, arm, target, tokens).

    With the source as the worst it is *gap closed*, with the window *context used*. Undefined where
    the denominator of all documents is below ``least`` nats/token.
    """

    def statistic(sums: Array) -> Array:
        gap = sums[..., 0] - sums[..., 2]
        # Resamples of a gap that is wide enough may be narrower; only their sign matters.
        enough = gap / sums[..., 3] >= least if np.ndim(gap) == 0 else gap > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(enough, (sums[..., 0] - sums[..., 1]) / gap, np.nan)

    return statistic


gap_closed = recovered(LEAST_GAP)
"""Share of the source's distance to the target; defined where that is 0.05 nats/token or more."""

context_used = recovered(1e-9)
"""Share of what the whole prompt gives beyond the window."""


def correlation(x: Array, y: Array, seed: int = 0, resamples: int = RESAMPLES) -> Estimate | None:
    """Spearman's rank correlation with its interval over resampled pairs.

    Args:
        x: ``[n]``.
        y: ``[n]``.
        seed: Of the draws.
        resamples: How many draws.

    Returns:
        None for fewer than three pairs, or where one side does not vary.
    """
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    drawn = np.random.default_rng(seed).integers(len(x), size=(resamples, len(x)))
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanpercentile(_pearson(_ranks(x[drawn]), _ranks(y[drawn])), [2.5, 97.5])
    value = _pearson(_ranks(x[None]), _ranks(y[None]))[0]
    return Estimate(float(value), float(low), float(high), len(x))


def _counts(documents: int, seed: int, resamples: int) -> Array:
    """``[resamples, n]``: how often each document is drawn."""
    draws = np.random.default_rng(seed)
    even = np.full(documents, 1 / documents)
    return draws.multinomial(documents, even, size=resamples).astype(np.float64)


def _ranks(rows: Array) -> Array:
    """Ranks along the last axis, ties sharing their mean rank."""
    less = (rows[:, None, :] < rows[:, :, None]).sum(-1)
    same = (rows[:, None, :] == rows[:, :, None]).sum(-1)
    return less + (same + 1) / 2


def _pearson(x: Array, y: Array) -> Array:
    x, y = (side - side.mean(-1, keepdims=True) for side in (x, y))
    return (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
