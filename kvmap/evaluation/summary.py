"""From scores to results: ratios from sums over documents, intervals from one bootstrap."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvmap.evaluation.arms import Arm
from kvmap.evaluation.measure import Measurements
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.result import AnswersResult, ArmResult, ContinuationResult, GreedyResult
from kvmap.evaluation.statistics import (
    Array,
    Estimate,
    Statistic,
    bootstrap,
    bootstrap_means,
    context_used,
    difference,
    floor_normalised,
    gap_closed,
    mcnemar,
    share,
)
from kvmap.evaluation.tasks.choices import ChoiceScore
from kvmap.evaluation.tasks.continuation import ContinuationScore
from kvmap.evaluation.tasks.greedy import GreedyScore
from kvmap.evaluation.tasks.lookups import LookupScore

CHANCE = 0.25
TARGET, SOURCE = Arm("target"), Arm("source")


@dataclass(frozen=True)
class Summary:
    """Turns one evaluation's scores into results.

    Attributes:
        measurements: The scores.
        passages: The passages they belong to.
        prompt: P of the continuation.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        families: Family by mapper key.
        window: The window that the models' own readings are held against.
    """

    measurements: Measurements
    passages: Sequence[Passage]
    prompt: int
    seed: int
    resamples: int
    families: Mapping[str, str]
    window: Arm

    def arm(self, arm: Arm) -> ArmResult:
        """All that is known of an arm."""
        return ArmResult(
            name=arm.name,
            arm=arm,
            family=self.families.get(arm.mapper, ""),
            repaired_share=arm.repaired_share(self.prompt),
            continuation=self.continuation(arm),
            choices=self.choices(arm),
            lookups=self.lookups(arm),
            greedy=self.greedy(arm),
        )

    def estimate(self, statistic: Statistic, *columns: Array) -> Estimate | None:
        """A statistic of sums, given what each document adds to each."""
        return bootstrap(np.stack(columns, axis=1), statistic, self.seed, self.resamples)

    def nll(self, arm: Arm, passages: int | None = None) -> Array:
        """``[n]`` nats of each passage's whole continuation."""
        scores: list[ContinuationScore] = self.measurements.scores("continuation", arm)[:passages]
        return np.array([sum(score.nll) for score in scores], dtype=np.float64)

    def continuation(self, arm: Arm) -> ContinuationResult | None:
        """Likelihood of the text's own continuation."""
        scores: list[ContinuationScore] = self.measurements.scores("continuation", arm)
        if not scores:
            return None
        count, tokens = len(scores), len(scores[0].nll)
        mine, source, target = self.nll(arm), self.nll(SOURCE, count), self.nll(TARGET, count)
        window = self.nll(self._window_of(arm), count)
        length = np.full(count, float(tokens))
        kl = np.array([score.kl for score in scores])
        same = np.array([score.same_top for score in scores], dtype=np.float64)
        return ContinuationResult(
            passages=count,
            tokens=tokens,
            nll=_known(self.estimate(share, mine, length)),
            below_source=_known(self.estimate(difference, source, mine, length)),
            above_target=_known(self.estimate(difference, mine, target, length)),
            gap_closed=self.estimate(gap_closed, source, mine, target, length),
            context_used=self.estimate(context_used, window, mine, target, length)
            if len(window)
            else None,
            kl=_known(self.estimate(share, kl.sum(1), length)),
            same_top=_known(self.estimate(share, same.sum(1), length)),
            kl_by_position=bootstrap_means(kl, self.seed, self.resamples),
            same_top_by_position=bootstrap_means(same, self.seed, self.resamples),
            nll_by_passage=(mine / tokens).tolist(),
        )

    def choices(self, arm: Arm) -> AnswersResult | None:
        """Four-way choice of a continuation."""
        scores: list[ChoiceScore] = self.measurements.scores("choices", arm)
        if not scores:
            return None
        hits = [[score.hit] for score in scores]
        targets: list[ChoiceScore] = self.measurements.scores("choices", TARGET)
        sources: list[ChoiceScore] = self.measurements.scores("choices", SOURCE)
        return self._answers(
            hits,
            [[score.hit] for score in targets[: len(hits)]],
            [[score.hit] for score in sources[: len(hits)]],
            [],
            arm.repaired_share(self.prompt),
        )

    def lookups(self, arm: Arm) -> AnswersResult | None:
        """Four-way in-context look-ups."""
        scores: list[LookupScore] = self.measurements.scores("lookups", arm)
        if not any(score.hits for score in scores):
            return None
        targets: list[LookupScore] = self.measurements.scores("lookups", TARGET)
        sources: list[LookupScore] = self.measurements.scores("lookups", SOURCE)
        shares = [
            arm.repaired_share(lookup.position)
            for passage in self.passages[: len(scores)]
            for lookup in passage.lookups
        ]
        return self._answers(
            [score.hits for score in scores],
            [score.hits for score in targets[: len(scores)]],
            [score.hits for score in sources[: len(scores)]],
            [distance for score in scores for distance in score.distances],
            float(np.mean(shares)),
        )

    def greedy(self, arm: Arm) -> GreedyResult | None:
        """Greedy continuations against the target's."""
        scores: list[GreedyScore] = self.measurements.scores("greedy", arm)
        if not scores:
            return None
        targets: list[GreedyScore] = self.measurements.scores("greedy", TARGET)
        own = np.array([score.tokens for score in targets[: len(scores)]])
        same = (np.array([score.tokens for score in scores]) == own).astype(np.float64)
        ones, tokens = np.ones(len(same)), np.full(len(same), float(same.shape[1]))
        start = same.cumprod(axis=1)
        return GreedyResult(
            passages=len(same),
            tokens=same.shape[1],
            exact_match=_known(self.estimate(share, start[:, -1], ones)),
            same_tokens=_known(self.estimate(share, same.sum(1), tokens)),
            same_start=_known(self.estimate(share, start.sum(1), tokens)),
        )

    def gain(self, arm: Arm, without: Arm) -> tuple[Estimate, Estimate | None]:
        """What an arm gains over another on the passages that both saw.

        Returns:
            Nats/token, and gap closed with less gap closed without.
        """
        mine = self.nll(arm)
        count = len(mine)
        other, source, target = (self.nll(each, count) for each in (without, SOURCE, TARGET))
        tokens = len(self.measurements.scores("continuation", arm)[0].nll)
        length = np.full(count, float(tokens))

        def closed(sums: Array) -> Array:
            return gap_closed(sums[..., [0, 1, 3, 4]]) - gap_closed(sums[..., [0, 2, 3, 4]])

        return (
            _known(self.estimate(difference, other, mine, length)),
            self.estimate(closed, source, mine, other, target, length),
        )

    def _window_of(self, arm: Arm) -> Arm:
        """The window that sees what an arm repairs."""
        own = Arm("window", arm.repair, arm.prefix)
        return own if self.measurements.scores("continuation", own) else self.window

    def _answers(
        self,
        hits: list[list[bool]],
        target: list[list[bool]],
        source: list[list[bool]],
        distances: list[int],
        repaired_share: float,
    ) -> AnswersResult:
        mine, theirs = (
            np.array([float(sum(each)) for each in answers]) for answers in (hits, target)
        )
        items = np.array([float(len(each)) for each in hits])
        flat, flat_target, flat_source = (
            np.array([hit for each in answers for hit in each], dtype=np.bool_)
            for answers in (hits, target, source)
        )
        return AnswersResult(
            items=len(flat),
            chance=CHANCE,
            accuracy=_known(self.estimate(share, mine, items)),
            retention=self.estimate(floor_normalised(0.0), mine, theirs, items),
            floor_normalised=self.estimate(floor_normalised(CHANCE), mine, theirs, items),
            against_target=mcnemar(flat, flat_target),
            against_source=mcnemar(flat, flat_source),
            repaired_share=repaired_share,
            passages=[index for index, each in enumerate(hits) for _ in each],
            distances=distances,
            hits=flat.tolist(),
        )


def _known(estimate: Estimate | None) -> Estimate:
    """An estimate that is always defined."""
    if estimate is None:
        raise ValueError("a mean of finite numbers is finite; a model gave NaN")
    return estimate
