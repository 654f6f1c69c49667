"""Chooses family, k, r and p on the development set; the test set never has a say."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvmap.evaluation.arms import Arm
from kvmap.evaluation.candidates import Export, Mappers
from kvmap.evaluation.measure import Work, measure
from kvmap.evaluation.models import Models
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.progress import Progress
from kvmap.evaluation.result import Candidate, DiagnosticCorrelation, OperatingPoint
from kvmap.evaluation.settings import Settings
from kvmap.evaluation.statistics import correlation
from kvmap.evaluation.summary import SOURCE, TARGET, Summary
from kvmap.evaluation.tasks.base import Task
from kvmap.evaluation.tasks.continuation import Continuation
from kvmap.evaluation.tasks.lookups import Lookups
from kvmap.evaluation.units import Units


def needs_choice(exports: Sequence[Export], settings: Settings) -> bool:
    """Whether there is anything to choose, and text to choose it on."""
    search = settings.search
    several = len(exports) * len(search.repairs) * len(search.prefixes) > 1
    return several and settings.sizes.development > 0


class Chooser:
    """Compares exports at one repair, then repairs at the best export.

    A candidate's score is the least of its gap closed (context used, where source and target are
    too close) and its floor-normalised look-ups: a mapper that does well on one and fails the other
    is not to be served. Within ``tolerance`` of the best score fewer repaired tokens win.

    Args:
        models: The pair.
        passages: Development passages.
        settings: Sizes and search.
        mappers: Of the exports.
        units: Where finished work lies.
        progress: Told of every unit.
    """

    def __init__(
        self,
        models: Models,
        passages: Sequence[Passage],
        settings: Settings,
        mappers: Mappers,
        units: Units,
        progress: Progress | None = None,
    ) -> None:
        self.models, self.passages, self.settings = models, passages, settings
        self.mappers, self.units, self.progress = mappers, units, progress

    def choose(self, exports: Sequence[Export]) -> tuple[Export, OperatingPoint]:
        """The export to serve, and at which repair."""
        search = self.settings.search
        first = (max(search.repairs), max(search.prefixes))
        compared = self._candidates([(export, *first) for export in exports])
        best = exports[int(np.argmax([each.score for each in compared]))]
        more = [
            (best, repair, prefix)
            for repair in search.repairs
            for prefix in search.prefixes
            if (repair, prefix) != first
        ]
        refined = self._candidates(more) if more else []
        at_best = [each for each in compared if each.mapper == best.facts] + refined
        enough = max(each.score for each in at_best) - search.tolerance
        chosen = min(
            (each for each in at_best if each.score >= enough),
            key=lambda each: (each.repaired_share, -each.score),
        )
        candidates = [replace(each, chosen=each is chosen) for each in [*compared, *refined]]
        why = (
            f"{best.config.family} ({best.named}) has the best score of {len(exports)} exports; "
            f"repair {chosen.repair} and prefix {chosen.prefix} are the least that come within "
            f"{search.tolerance} of its best"
        )
        return best, OperatingPoint(
            repair=chosen.repair,
            prefix=chosen.prefix,
            chosen_on="development",
            reported_on="test",
            passages=len(self.passages),
            why=why,
            candidates=candidates,
            correlations=correlations(compared, self.settings),
        )

    def _candidates(self, places: Sequence[tuple[Export, int, int]]) -> list[Candidate]:
        sizes = self.settings.sizes
        tasks: list[Task] = [Continuation(sizes.prompt, sizes.continuation), Lookups()]
        arms = [Arm("mapped", repair, prefix, each.key) for each, repair, prefix in places]
        windows = {Arm("window", arm.repair, arm.prefix) for arm in arms}
        controls = sorted(windows, key=lambda arm: arm.name)
        works = [Work(task, arm, len(self.passages)) for task in tasks for arm in (TARGET, SOURCE)]
        works += [Work(tasks[0], arm, len(self.passages)) for arm in controls]
        # Arms of equal mappers (two exports of one fit) are measured once.
        works += [
            Work(task, arm, len(self.passages)) for arm in dict.fromkeys(arms) for task in tasks
        ]
        measurements = measure(
            self.models, self.passages, works, self.mappers, self.units, sizes.block, self.progress
        )
        summary = Summary(
            measurements,
            self.passages,
            sizes.prompt,
            self.settings.seed,
            self.settings.resamples,
            self.mappers.families,
            controls[0],
        )
        return [
            self._candidate(summary, export, arm)
            for (export, *_), arm in zip(places, arms, strict=True)
        ]

    @staticmethod
    def _candidate(summary: Summary, export: Export, arm: Arm) -> Candidate:
        found = summary.arm(arm)
        likelihood, memory = found.continuation, found.lookups
        if likelihood is None:
            raise ValueError(f"{arm.name} was not measured")
        parts = [likelihood.gap_closed or likelihood.context_used]
        if memory is not None:
            parts.append(memory.floor_normalised)
        return Candidate(
            mapper=export.facts,
            repair=arm.repair,
            prefix=arm.prefix,
            repaired_share=found.repaired_share,
            nll=likelihood.nll,
            gap_closed=likelihood.gap_closed,
            context_used=likelihood.context_used,
            lookups=memory.accuracy if memory is not None else None,
            lookups_floor_normalised=memory.floor_normalised if memory is not None else None,
            score=min((part.value for part in parts if part is not None), default=0.0),
        )


def correlations(compared: Sequence[Candidate], settings: Settings) -> list[DiagnosticCorrelation]:
    """Each diagnostic of the exports against what they reach, over exports at one repair."""
    found = []
    names = sorted({name for each in compared for name in each.mapper.metrics})
    for name in (name for name in names if name.startswith("val/")):
        for quality in ("gap_closed", "nll"):
            points = [(each.mapper.metrics.get(name), getattr(each, quality)) for each in compared]
            known = [(x, y.value) for x, y in points if x is not None and y is not None]
            if len(known) < 3:
                continue
            x, y = (np.array(side, dtype=np.float64) for side in zip(*known, strict=True))
            spearman = correlation(x, y, settings.seed, settings.resamples)
            found.append(DiagnosticCorrelation(name, quality, len(known), spearman))
    return found
