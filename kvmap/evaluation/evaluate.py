"""One evaluation from its parts: choose on development, measure on test, judge, write."""

import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from kvmap.benchmark.result import BenchmarkResult
from kvmap.corpora.base import Corpus
from kvmap.errors import KVMapError
from kvmap.evaluation.answering import Answering
from kvmap.evaluation.arms import Arm, Role
from kvmap.evaluation.candidates import Export, Mappers, has_nearest
from kvmap.evaluation.drift import MODES, Handoffs
from kvmap.evaluation.evidence import Evidence
from kvmap.evaluation.findings import findings
from kvmap.evaluation.handoff import reversed_pair
from kvmap.evaluation.harness import Harness, require_harness, run_harness
from kvmap.evaluation.lineup import Lineup
from kvmap.evaluation.measure import Measurements, blocks, measure, steps
from kvmap.evaluation.models import Models, NamedMapper
from kvmap.evaluation.operating import Chooser, needs_choice
from kvmap.evaluation.passages import Passage, fingerprint, passages, with_choices
from kvmap.evaluation.progress import Progress
from kvmap.evaluation.replacement import replacements
from kvmap.evaluation.result import DataFacts, EvaluationResult, Handoff, OperatingPoint
from kvmap.evaluation.settings import Settings
from kvmap.evaluation.speed import Speed
from kvmap.evaluation.summary import Summary
from kvmap.evaluation.units import Units
from kvmap.export import load_mapper
from kvmap.pair import ModelPair
from kvmap.provenance import Provenance


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

    Attributes:
        benchmark: The speed at the operating point, once :meth:`run` has measured it.
        evidence: The file that it wrote into the export.

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
        self.benchmark: BenchmarkResult | None = None
        self.evidence: Path | None = None
        self._check()

    def run(self) -> EvaluationResult:
        """Evaluate; finished work of an earlier call is not done again.

        Writes ``evaluation.json`` and ``benchmark.json`` into the folder, and ``evidence.json``
        into the export.
        """
        try:
            self.out_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KVMapError(
                f"out_dir={self.out_dir} cannot be made ({error.strerror}); choose another"
            ) from error
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
        served = Arm("mapped", point.repair, point.prefix, export.key)
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
        del models  # the runtime loads its own
        point = self._speed(export, point, mappers, units, test)
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
        self.evidence = Evidence.of(result, above).write(export.folder)
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
            repair, prefix = max(search.repairs), max(search.prefixes)
            return first, OperatingPoint(repair, prefix, "nothing", "test", 0, why), ""
        sizes = settings.sizes
        chosen_on = self._passages("development", sizes.development, 0)
        progress = Progress(None, self.shown)  # the second round depends on the first
        chooser = Chooser(models, chosen_on, settings, mappers, units, progress)
        export, point = chooser.choose(self.exports)
        progress.close()
        return export, point, fingerprint(chosen_on)

    def _speed(
        self,
        export: Export,
        point: OperatingPoint,
        mappers: Mappers,
        units: Units,
        test: Sequence[Passage],
    ) -> OperatingPoint:
        """Measure it, last of all; the point comes back with its candidates' first tokens."""
        if not self.settings.speed.prompts:
            return point
        progress = Progress(None, self.shown)
        speed = Speed(self.pair, mappers, self.settings, units, progress)
        if len(self.exports) > 1:
            few = self._passages("development", self.settings.sizes.development, 0)
            point = speed.candidates(point, self.exports, few)
        self.benchmark = speed.benchmark(export, point, test, self.out_dir)
        progress.close()
        return point

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
            _require_fitted_on(export, self.pair)
        if self.reverse is not None:
            _require_fitted_on(self.reverse, reversed_pair(self.pair))


def _require_fitted_on(export: Export, pair: ModelPair) -> None:
    """Refuse an export that was fitted on other models.

    Raises:
        KVMapError: It was.
    """
    for side, fitted, served in (
        ("source", export.config.source, pair.source),
        ("target", export.config.target, pair.target),
    ):
        if fitted.revision != served.identity().revision:
            raise KVMapError(
                f"{export.named} was fitted on another {side} than {served.spec.model}; evaluate "
                "the pair it was fitted on, or fit anew"
            )
