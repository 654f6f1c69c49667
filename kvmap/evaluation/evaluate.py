"""One evaluation from its parts: choose on development, measure on test, judge, write."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from kvmap.corpora.base import Corpus
from kvmap.errors import KVMapError
from kvmap.evaluation.answering import Answering
from kvmap.evaluation.arms import Arm, Role
from kvmap.evaluation.candidates import NEAREST, Export, Mappers, has_nearest
from kvmap.evaluation.drift import MODES, Handoffs
from kvmap.evaluation.evidence import Evidence
from kvmap.evaluation.findings import findings
from kvmap.evaluation.handoff import reversed_pair
from kvmap.evaluation.harness import Harness, require_harness, run_harness
from kvmap.evaluation.measure import Measurements, Work, blocks, measure, steps
from kvmap.evaluation.models import Models, NamedMapper
from kvmap.evaluation.operating import Chooser, needs_choice
from kvmap.evaluation.passages import Passage, fingerprint, passages, with_choices
from kvmap.evaluation.progress import Progress
from kvmap.evaluation.replacement import replacement_arms, replacements
from kvmap.evaluation.result import DataFacts, EvaluationResult, Handoff, OperatingPoint
from kvmap.evaluation.settings import Settings, Sizes
from kvmap.evaluation.summary import SOURCE, TARGET, Summary
from kvmap.evaluation.tasks.choices import Choices
from kvmap.evaluation.tasks.continuation import Continuation
from kvmap.evaluation.tasks.greedy import Greedy
from kvmap.evaluation.tasks.lookups import Lookups
from kvmap.evaluation.units import Units
from kvmap.export import load_mapper
from kvmap.pair import ModelPair
from kvmap.provenance import Provenance


@dataclass(frozen=True)
class Lineup:
    """The arms of an evaluation.

    Attributes:
        served: The operating point.
        main: Arms with all look-ups: target, source, the served arm, its window.
        controls: Arms with some look-ups: the repair curve and the other controls.
        windows: Windows of the repair curve, for context used; continuation only.
        curve: The repair curve, least repair first.
        replaced: The served arm with an exact part; continuation of some passages only.
    """

    served: Arm
    main: list[Arm]
    controls: list[Arm]
    windows: list[Arm]
    curve: list[Arm]
    replaced: list[Arm]

    @classmethod
    def around(cls, served: Arm, curve: Sequence[int], nearest: bool, layers: int) -> "Lineup":
        """All arms that a mapper at an operating point is compared with.

        Args:
            served: The operating point.
            curve: Repairs of the repair curve.
            nearest: Whether the pair allows depth_nearest.
            layers: The target's.
        """
        repair, sinks, key = served.repair, served.sinks, served.mapper
        window = Arm("window", repair, sinks)
        points = [Arm("mapped", r, sinks, key) for r in sorted({*curve, repair})]
        controls = [
            Arm("mapped", 0, 0, key),
            *points,
            Arm("exact", repair, sinks),
            Arm("mismatched", repair, sinks, key),
        ]
        if nearest:
            controls.append(Arm("depth_nearest", repair, sinks, NEAREST))
        main = [TARGET, SOURCE, served, window]
        windows = [Arm("window", arm.repair, arm.sinks) for arm in controls]
        return cls(
            served=served,
            main=main,
            controls=[arm for arm in dict.fromkeys(controls) if arm not in main],
            windows=[arm for arm in dict.fromkeys(windows) if arm not in main],
            curve=points,
            replaced=replacement_arms(served, layers),
        )

    def works(self, sizes: Sizes, found: Sequence[Passage]) -> list[Work]:
        """Which arm is asked what about how many passages."""
        text = Continuation(sizes.prompt, sizes.continuation)
        works = []
        for arms, least in ((self.main, sizes.lookups), (self.controls, sizes.other_lookups)):
            for arm in arms:
                works += [
                    Work(text, arm, sizes.passages),
                    Work(Choices(sizes.prompt), arm, sizes.passages),
                    Work(Lookups(), arm, passages_with(found, least)),
                ]
        # Writing is slow, token by token: of the repair curve only its end without repair writes.
        writers = [arm for arm in self.controls if arm not in self.curve or not arm.repair]
        writing = Greedy(sizes.prompt, sizes.greedy_tokens)
        works += [Work(writing, arm, sizes.greedy) for arm in (*self.main, *writers)]
        works += [Work(text, arm, sizes.passages) for arm in self.windows]
        works += [Work(text, arm, sizes.replacement) for arm in self.replaced]
        return [work for work in works if work.passages]


def passages_with(found: Sequence[Passage], lookups: int) -> int:
    """How many passages, from the first, hold so many look-ups; all where there are fewer."""
    asked = 0
    for number, passage in enumerate(found):
        if asked >= lookups:
            return number
        asked += len(passage.lookups)
    return len(found) if asked else 0


class Evaluation:
    """Everything that one evaluation needs.

    Args:
        pair: The models.
        corpus: The text.
        exports: One, or those of a sweep.
        settings: Sizes, search, seed.
        out_dir: Where units and the result go.
        reverse: Export of a mapper from target to source, for handoffs both ways.
        harness: Tasks of lm-evaluation-harness.
        shown: Whether to show progress.

    Raises:
        KVMapError: Something does not fit: exports and pair, sizes and text or positions.
    """

    def __init__(
        self,
        pair: ModelPair,
        corpus: Corpus,
        exports: Sequence[Export],
        settings: Settings,
        out_dir: Path,
        reverse: Export | None = None,
        harness: Harness | None = None,
        shown: bool = True,
    ) -> None:
        self.pair, self.corpus, self.exports = pair, corpus, list(exports)
        self.settings, self.out_dir, self.reverse = settings, out_dir, reverse
        self.harness, self.shown = harness or Harness(), shown
        self._check()

    def run(self) -> EvaluationResult:
        """Evaluate; finished work of an earlier call is not done again.

        Writes ``evaluation.json`` into the folder, and ``evidence.json`` into the export.
        """
        self.out_dir.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.out_dir / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise KVMapError(
                f"another process evaluates in {self.out_dir}; wait for it or choose another "
                "out_dir"
            ) from None
        try:
            return self._run()
        finally:
            lock.release()

    def _run(self) -> EvaluationResult:
        started = time.monotonic()
        sizes = self.settings.sizes
        models, units = Models(self.pair), Units(self.out_dir / "units")
        mappers = Mappers(self.pair, self.exports)
        export, point, development = self._choose(models, mappers, units)
        test = self._passages("test", sizes.passages, sizes.lookups)
        test = with_choices(test, sizes.prompt, sizes.choice_tokens, self.settings.seed)
        served = Arm("mapped", point.repair, point.sinks, export.key)
        lineup = Lineup.around(
            served, self.settings.curve, has_nearest(self.pair), self.pair.target.shape.layers
        )
        works = lineup.works(sizes, test)
        progress = Progress(steps(works, len(test), sizes.block) + self._turns(test), self.shown)
        found = measure(models, test, works, mappers, units, sizes.block, progress)
        handoffs = self._handoffs(models, test, mappers(export.key), point.repair, units, progress)
        progress.close()
        summary = self._summary(found, test, mappers, lineup.main[-1])
        harness = run_harness(self.harness, self._harness_arms(models, mappers, lineup))
        result = EvaluationResult(
            pair=self.pair.name,
            direction=self.pair.direction,
            source=self.pair.source.identity(),
            target=self.pair.target.identity(),
            mapper=export.facts,
            settings=self.settings,
            data=DataFacts(self.corpus.identity(), fingerprint(test), development),
            operating_point=point,
            arms=[summary.arm(arm) for arm in (*lineup.main, *lineup.controls, *lineup.windows)],
            curve=[arm.name for arm in lineup.curve],
            replacements=replacements(summary, served, lineup.replaced)
            if sizes.replacement
            else [],
            handoffs=handoffs,
            findings=findings(summary, served),
            harness=harness,
            seconds=time.monotonic() - started,
            provenance=Provenance(),
        )
        result.write(self.out_dir)
        mismatched = next(arm for arm in lineup.controls if arm.role == "mismatched")
        above, _ = summary.gain(served, mismatched)
        Evidence.of(result, above).write(export.folder)
        return result

    def _choose(
        self, models: Models, mappers: Mappers, units: Units
    ) -> tuple[Export, OperatingPoint, str]:
        """The export and the repair to serve, and the fingerprint of what chose them."""
        settings, first = self.settings, self.exports[0]
        if not needs_choice(self.exports, settings):
            if len(self.exports) > 1:
                raise KVMapError(
                    f"{len(self.exports)} exports need a choice; set sizes.development above 0, "
                    "or name one with export="
                )
            search = settings.search
            why = "one export at one repair, nothing to choose"
            repair, sinks = max(search.repairs), max(search.sinks)
            return first, OperatingPoint(repair, sinks, "nothing", "test", 0, why), ""
        sizes = settings.sizes
        chosen_on = self._passages("development", sizes.development, 0)
        progress = Progress(None, self.shown)  # the second round depends on the first
        chooser = Chooser(models, chosen_on, settings, mappers, units, progress)
        export, point = chooser.choose(self.exports)
        progress.close()
        return export, point, fingerprint(chosen_on)

    def _passages(self, split: str, count: int, lookups: int) -> list[Passage]:
        sizes = self.settings.sizes
        return passages(
            self.corpus,
            self.pair.target.tokenizer,
            split,  # type: ignore[arg-type]
            sizes.length,
            count,
            lookups,
            sizes.lookup_distance,
        )

    def _summary(
        self, found: Measurements, test: Sequence[Passage], mappers: Mappers, window: Arm
    ) -> Summary:
        settings = self.settings
        return Summary(
            found,
            test,
            settings.sizes.prompt,
            settings.seed,
            settings.resamples,
            mappers.families,
            window,
        )

    def _turns(self, test: Sequence[Passage]) -> int:
        sizes = self.settings.sizes
        if not sizes.conversations:
            return 0
        return len(MODES) * len(blocks(min(sizes.conversations, len(test)), sizes.block))

    def _handoffs(
        self,
        models: Models,
        test: Sequence[Passage],
        mapper: NamedMapper,
        repair: int,
        units: Units,
        progress: Progress,
    ) -> list[Handoff]:
        if not self.settings.sizes.conversations:
            return []
        back = None
        if self.reverse is not None:
            reverse = load_mapper(self.reverse.folder, reversed_pair(self.pair))
            back = NamedMapper(self.reverse.key, reverse)
        handoffs = Handoffs(models, test, self.settings, mapper, back, repair, units, progress)
        named = self.reverse.named if self.reverse else ""
        return [handoffs.measure(mode, named) for mode in MODES]

    def _harness_arms(self, models: Models, mappers: Mappers, lineup: Lineup) -> list[Answering]:
        if not self.harness.tasks:
            return []
        by_role: dict[Role, Arm] = {}
        for arm in (*lineup.main, *lineup.controls):
            by_role.setdefault(arm.role, arm)
        for role in self.harness.arms:
            if role not in by_role:
                raise KVMapError(
                    f"harness.arms: there is no arm {role!r}; choose from {', '.join(by_role)}"
                )
        arms = [by_role[role] for role in self.harness.arms]
        return [Answering(models, arm, mappers(arm.mapper) if arm.mapper else None) for arm in arms]

    def _check(self) -> None:
        """Refuse before anything is loaded what could not end well."""
        if not self.exports:
            raise KVMapError("nothing to evaluate; name an export")
        if self.harness.tasks:
            require_harness()
        sides = (self.pair.source, self.pair.target)
        limit = min(int(side.config.max_position_embeddings) for side in sides)
        length = self.settings.sizes.length
        if length > limit:
            raise KVMapError(
                f"passages of {length} tokens exceed the {limit} positions of the models; lower "
                "sizes.prompt, sizes.continuation or sizes.turns"
            )
        for export in self.exports:
            load = export.config
            for side, fitted, served in (
                ("source", load.source, self.pair.source),
                ("target", load.target, self.pair.target),
            ):
                if fitted.revision != served.identity().revision:
                    raise KVMapError(
                        f"{export.named} was fitted on another {side} than "
                        f"{served.spec.model}; evaluate the pair it was fitted on, or fit anew"
                    )
