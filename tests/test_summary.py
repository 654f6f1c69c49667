"""Results from scores written by hand, so that every number can be worked out on paper."""

from typing import Any

import pytest
import torch

from kvmap.evaluation.arms import Arm
from kvmap.evaluation.findings import findings
from kvmap.evaluation.measure import Measurements, Work
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.summary import SOURCE, TARGET, Summary
from kvmap.evaluation.tasks.base import Task
from kvmap.evaluation.tasks.choices import Choices, ChoiceScore
from kvmap.evaluation.tasks.continuation import Continuation, ContinuationScore
from kvmap.evaluation.tasks.greedy import Greedy, GreedyScore
from kvmap.evaluation.tasks.lookups import Lookups, LookupScore
from kvmap.tiny.lookup_tokens import LookupTokens

MAPPED, WINDOW = Arm("mapped", 2, mapper="m"), Arm("window", 2)


def summary(*given: tuple[Task, Arm, list[Any]], passages: list[Passage] | None = None) -> Summary:
    measurements = Measurements()
    for task, arm, scores in given:
        measurements.add(Work(task, arm, len(scores)), scores)
    return Summary(measurements, passages or [], 10, 0, 200, {"m": "ridge"}, WINDOW)


def text(*nll: float) -> list[ContinuationScore]:
    """Passages of two tokens that cost so many nats each."""
    return [ContinuationScore([each, each], [0.1, 0.3], [True, False]) for each in nll]


def test_likelihood_is_held_against_source_target_and_window() -> None:
    task = Continuation(10, 2)
    found = summary(
        (task, TARGET, text(1.0, 2.0, 3.0)),
        (task, SOURCE, text(2.0, 3.0, 4.0)),
        (task, MAPPED, text(1.5, 2.5, 3.0)),
        (task, WINDOW, text(3.0, 4.0, 5.0)),
    ).arm(MAPPED)
    assert (found.family, found.repaired_share) == ("ridge", 0.2)
    likelihood = found.continuation
    assert likelihood.nll.value == pytest.approx(7 / 3)
    assert likelihood.below_source.value == pytest.approx(2 / 3)
    assert likelihood.above_target.value == pytest.approx(1 / 3)
    assert likelihood.gap_closed.value == pytest.approx(2 / 3)
    assert likelihood.context_used.value == pytest.approx(5 / 6)
    assert likelihood.kl.value == pytest.approx(0.2)
    assert likelihood.same_top_by_position.values == [1.0, 0.0]
    assert likelihood.nll_by_passage == [1.5, 2.5, 3.0]


def test_an_arm_asked_about_fewer_passages_is_compared_on_those() -> None:
    task = Continuation(10, 2)
    given = summary(
        (task, TARGET, text(1.0, 2.0, 90.0)),
        (task, SOURCE, text(2.0, 3.0, 10.0)),
        (task, WINDOW, text(3.0, 4.0, 5.0)),
        (task, MAPPED, text(1.5, 2.5)),
    )
    assert given.continuation(MAPPED).gap_closed.value == pytest.approx(0.5)
    gain, closed = given.gain(MAPPED, SOURCE)
    assert gain.value == pytest.approx(0.5)
    assert closed.value == pytest.approx(0.5)


def test_greedy_tells_the_same_start_from_the_same_tokens() -> None:
    task = Greedy(10, 4)
    scores = [GreedyScore([1, 2, 3, 4]), GreedyScore([1, 9, 3, 4]), GreedyScore([9, 2, 3, 4])]
    target = [GreedyScore([1, 2, 3, 4])] * 3
    found = summary((task, TARGET, target), (task, MAPPED, scores)).greedy(MAPPED)
    assert found.exact_match.value == pytest.approx(1 / 3)
    assert found.same_tokens.value == pytest.approx(10 / 12)
    assert found.same_start.value == pytest.approx(5 / 12)


def test_lookups_count_items_and_draw_documents() -> None:
    asked = [
        tuple(LookupTokens(at, 5, (0, 1, 2, 3), 0) for at in ats) for ats in ((4, 8), (), (8,))
    ]
    passages = [Passage(torch.zeros(12), each) for each in asked]
    hits = {TARGET: [[True, True], [], [True]], SOURCE: [[False, True], [], [False]],
            MAPPED: [[True, True], [], [False]]}  # fmt: skip
    given = [
        (Lookups(), arm, [LookupScore([5] * len(each), each) for each in answers])
        for arm, answers in hits.items()
    ]
    found = summary(*given, passages=passages).lookups(MAPPED)
    assert (found.items, found.passages, found.hits) == (3, [0, 0, 2], [True, True, False])
    assert found.accuracy.value == pytest.approx(2 / 3)
    assert found.accuracy.documents == 3
    assert found.floor_normalised.value == pytest.approx((2 / 3 - 1 / 4) / (3 / 4))
    assert (found.against_target.gained, found.against_target.lost) == (0, 1)
    assert (found.against_source.gained, found.against_source.lost) == (1, 0)
    assert found.repaired_share == pytest.approx((2 / 4 + 2 / 8 + 2 / 8) / 3)


def test_choices_are_one_item_a_passage() -> None:
    right, wrong = ChoiceScore([1.0, 2.0, 2.0, 2.0], 0), ChoiceScore([1.0, 2.0, 2.0, 2.0], 3)
    task = Choices(10)
    found = summary(
        (task, TARGET, [right, right]),
        (task, SOURCE, [wrong, wrong]),
        (task, MAPPED, [right, wrong]),
    ).choices(MAPPED)
    assert (found.hits, found.distances, found.repaired_share) == ([True, False], [], 0.2)
    assert found.retention.value == 0.5


@pytest.mark.parametrize(
    ("likely", "remembers", "says"),
    [
        (True, True, "does well on likelihood and on the look-ups alike"),
        (True, False, "does well on likelihood and fails the look-ups"),
        (False, True, "does well on the look-ups and fails on likelihood"),
        (False, False, "fails on likelihood and on the look-ups alike"),
    ],
)
def test_a_mapper_that_does_well_on_one_side_only_is_named_as_such(
    likely: bool, remembers: bool, says: str
) -> None:
    task, passages = (
        Continuation(10, 2),
        [Passage(torch.zeros(12), (LookupTokens(8, 5, (), 0),))] * 3,
    )
    nll = {TARGET: 1.0, SOURCE: 2.0, WINDOW: 3.0, MAPPED: 1.1 if likely else 1.9}
    given: list[Any] = [(task, arm, text(*[each] * 3)) for arm, each in nll.items()]
    for arm, hit in ((TARGET, True), (SOURCE, True), (MAPPED, remembers)):
        given.append((Lookups(), arm, [LookupScore([5], [hit])] * 3))
    found = findings(summary(*given, passages=passages), MAPPED)
    named = next(each for each in found if "look-ups" in each.what)
    assert named.what == f"the served arm {says}"
    assert named.holds == (likely == remembers)
