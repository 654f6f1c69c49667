"""The statistics against SciPy and against published figures."""

import numpy as np
import pytest

from kvmap.evaluation.statistics import (
    binomial_p,
    bootstrap,
    bootstrap_means,
    context_used,
    correlation,
    difference,
    floor_normalised,
    gap_closed,
    mcnemar,
    share,
)

stats = pytest.importorskip("scipy.stats")


def documents(seed: int, count: int = 40) -> np.ndarray:
    """Three arms' nats and the tokens of documents of different length; the arms go together."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(20, 60, count).astype(float)
    common = draw.gamma(4.0, 0.1, count)
    arms = [tokens * (common + shift + 0.05 * draw.normal(size=count)) for shift in (0.2, 0.1, 0.0)]
    return np.stack([*arms, tokens], axis=1)


@pytest.mark.parametrize(
    ("statistic", "plain"),
    [
        (difference, lambda a, b, _, n: (a.sum() - b.sum()) / n.sum()),
        (gap_closed, lambda a, b, c, _: (a.sum() - b.sum()) / (a.sum() - c.sum())),
    ],
)
def test_intervals_agree_with_scipys_paired_bootstrap(statistic, plain) -> None:
    table = documents(0)
    columns = table[:, [0, 1, 3]] if statistic is difference else table
    mine = bootstrap(columns, statistic, seed=1, resamples=20_000)
    theirs = stats.bootstrap(
        tuple(table.T),
        plain,
        paired=True,
        vectorized=False,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(2),
    )
    assert mine is not None
    assert mine.value == pytest.approx(plain(*table.T))
    interval = theirs.confidence_interval
    width = interval.high - interval.low
    assert mine.low == pytest.approx(interval.low, abs=0.03 * width)
    assert mine.high == pytest.approx(interval.high, abs=0.03 * width)
    assert mine.documents == len(table)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        sample = draw.exponential(size=60)
        found = bootstrap(np.stack([sample, np.ones(60)], 1), share, resamples=500)
        covered += found.low <= 1.0 <= found.high
    assert 0.88 <= covered / 300 <= 0.98


def test_a_pairing_narrows_the_interval_of_a_difference() -> None:
    table = documents(4)
    paired = bootstrap(table[:, [0, 1, 3]], difference)
    shuffled = table.copy()
    shuffled[:, 1] = np.roll(shuffled[:, 1], 7)
    unpaired = bootstrap(shuffled[:, [0, 1, 3]], difference)
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_one_seed_gives_equal_numbers_and_another_others() -> None:
    table = documents(5)
    first, second, other = (bootstrap(table, gap_closed, seed=seed) for seed in (0, 0, 1))
    assert first == second
    assert first.value == other.value
    assert first.low != other.low


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (3, 0), (5, 5), (6, 16), (40, 61), (900, 4)])
def test_mcnemar_is_scipys_exact_binomial_test(gained: int, lost: int) -> None:
    wanted = 1.0 if gained + lost == 0 else stats.binomtest(gained, gained + lost).pvalue
    assert binomial_p(gained, lost) == pytest.approx(wanted, rel=1e-9)


def test_mcnemar_of_the_textbook_table() -> None:
    # Wikipedia, "McNemar's test": 59 and 80 concordant, 6 and 16 discordant; exact p = 0.053.
    arm = np.repeat([True, True, False, False], [59, 6, 16, 80])
    other = np.repeat([True, False, True, False], [59, 6, 16, 80])
    found = mcnemar(arm, other)
    assert (found.gained, found.lost) == (6, 16)
    assert found.p == pytest.approx(0.0525, abs=5e-5)


def test_published_figures_come_out() -> None:
    # Qwen3 4B to 32B at 8K: NLL 0.589, 0.510, 0.383, "38% of the gap".
    row = np.array([0.589, 0.510, 0.383, 1.0])
    assert round(float(gap_closed(row)), 2) == 0.38
    # The same pair, 128 four-way choices: mapped 96, 32B 95, 4B 89.
    assert float(floor_normalised(0.0)(np.array([96.0, 95.0, 128.0]))) == pytest.approx(96 / 95)
    assert float(floor_normalised(0.25)(np.array([89.0, 95.0, 128.0]))) == pytest.approx(57 / 63)


@pytest.mark.parametrize(("gap", "defined"), [(0.049, False), (0.051, True), (-0.2, False)])
def test_gap_closed_is_defined_from_a_gap_of_a_twentieth(gap: float, defined: bool) -> None:
    ones = np.ones(10)
    table = np.stack([64 * (1 + gap) * ones, 64 * ones, 64 * ones, 64 * ones], axis=1)
    found = bootstrap(table, gap_closed)
    assert (found is not None) == defined
    if found is not None:
        assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_context_used_has_no_least_gap_but_a_sign() -> None:
    assert bootstrap(np.array([[1.01, 1.0, 1.0, 1.0]] * 3), context_used).value == 1.0
    assert bootstrap(np.array([[1.0, 1.0, 1.0, 1.0]] * 3), context_used) is None


def test_floor_normalised_needs_a_target_above_chance() -> None:
    assert bootstrap(np.array([[1.0, 1.0, 4.0]] * 5), floor_normalised(0.25)) is None


def test_means_by_place_are_means_one_place_at_a_time() -> None:
    table = np.random.default_rng(6).normal(size=(30, 4))
    curve = bootstrap_means(table, seed=3)
    for place in range(4):
        column = np.stack([table[:, place], np.ones(30)], axis=1)
        found = bootstrap(column, share, seed=3)
        assert curve.values[place] == pytest.approx(found.value)
        assert curve.low[place] == pytest.approx(found.low)
        assert curve.high[place] == pytest.approx(found.high)


def test_correlation_is_spearmans_with_ties() -> None:
    draw = np.random.default_rng(7)
    x = draw.integers(0, 8, 40).astype(float)
    y = x + draw.normal(size=40).round()
    found = correlation(x, y)
    assert found.value == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found.low < found.value < found.high <= 1
    assert correlation(x[:2], y[:2]) is None
    assert correlation(x, np.ones(40)) is None
