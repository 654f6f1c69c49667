"""Block sizes: what a schedule makes of acceptance and costs."""

import random
from itertools import pairwise

import pytest

from kvmap.errors import KVMapError
from kvmap.runtime.schedule import Adaptive, Fixed, Off, Schedule


def simulate(
    schedule: Schedule, share: float, draft: float, verify: float, per_token: float, rounds: int
) -> list[int]:
    """Rounds in which each proposal is accepted with a probability; the sizes taken."""
    dice, sizes = random.Random(0), []
    for _ in range(rounds):
        size = schedule.next()
        accepted = 0
        while accepted < size and dice.random() < share:
            accepted += 1
        schedule.observe(size, accepted, size * draft, verify + size * per_token)
        sizes.append(size)
    return sizes


def tokens_per_second(share: float, draft: float, verify: float, slope: float, size: int) -> float:
    return (1 - share ** (size + 1)) / (1 - share) / (size * draft + verify + size * slope)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("draft", [0.05, 0.2, 0.5])
def test_adaptive_comes_near_the_best_size(share: float, draft: float) -> None:
    sizes = simulate(Adaptive(4, 24), share, draft, 1.0, 0.02, 400)[200:]
    rates = [tokens_per_second(share, draft, 1.0, 0.02, size) for size in (0, *range(4, 25))]
    got = sum(tokens_per_second(share, draft, 1.0, 0.02, size) for size in sizes) / len(sizes)
    assert got >= 0.9 * max(rates)


def test_adaptive_starts_low_and_grows() -> None:
    sizes = simulate(Adaptive(4, 24), 0.97, 0.05, 1.0, 0.01, 60)
    assert sizes[0] == 4
    assert sizes[-1] > 12
    assert all(size == 0 or 4 <= size <= 24 for size in sizes)


def test_adaptive_stops_drafting_where_it_loses_and_looks_again() -> None:
    sizes = simulate(Adaptive(4, 24, patience=8), 0.05, 0.5, 1.0, 0.02, 200)
    assert sizes.count(0) > 170
    assert any(sizes[20:])


def test_adaptive_drafts_again_when_it_pays_again() -> None:
    schedule = Adaptive(4, 24, patience=4)
    simulate(schedule, 0.0, 0.4, 1.0, 0.0, 60)
    assert simulate(schedule, 0.95, 0.1, 1.0, 0.0, 400)[-1] >= 4


def test_hysteresis_keeps_the_size_still() -> None:
    sizes = simulate(Adaptive(4, 24), 0.8, 0.2, 1.0, 0.02, 600)[300:]
    changes = sum(a != b for a, b in pairwise(sizes))
    assert changes < 60


def test_fixed_and_off_are_what_they_say() -> None:
    assert set(simulate(Fixed(7), 0.1, 1.0, 1.0, 0.0, 20)) == {7}
    assert set(simulate(Off(), 0.9, 0.0, 1.0, 0.0, 20)) == {0}


@pytest.mark.parametrize("make", [lambda: Fixed(0), lambda: Adaptive(0, 4), lambda: Adaptive(9, 4)])
def test_sizes_that_make_no_sense_are_refused(make: object) -> None:
    with pytest.raises(KVMapError):
        make()  # type: ignore[operator]
