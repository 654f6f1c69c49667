"""The speed part of an evaluation: the candidates' first tokens, and a brief benchmark."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from kvmap.benchmark.benchmark import Benchmark, fingerprint, place
from kvmap.benchmark.result import FILE, BenchmarkResult
from kvmap.benchmark.settings import BenchmarkSettings
from kvmap.errors import KVMapError
from kvmap.evaluation.candidates import Export, Mappers
from kvmap.evaluation.first_token import FirstTokens
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.progress import Progress
from kvmap.evaluation.result import OperatingPoint
from kvmap.evaluation.settings import Settings
from kvmap.evaluation.units import Units
from kvmap.pair import ModelPair
from kvmap.provenance import Provenance
from kvmap.runtime import settings as runtime
from kvmap.runtime.engine import Engine
from kvmap.runtime.settings import Repair


class Speed:
    """Loads the models anew, in the runtime's form, when the first number is missing.

    Args:
        pair: The models.
        mappers: Of the exports.
        settings: Sizes and the benchmark's own.
        units: Where finished work lies.
        progress: Told of every step.
    """

    def __init__(
        self,
        pair: ModelPair,
        mappers: Mappers,
        settings: Settings,
        units: Units,
        progress: Progress,
    ) -> None:
        self._pair, self._mappers, self._settings = pair, mappers, settings
        self._units, self._progress = units, progress

    @cached_property
    def _engine(self) -> Engine:
        # Its own mode says nothing: every request names one.
        engine = Engine(self._pair, None, runtime.Settings(mode="target"))
        engine.self_test()
        return engine

    def candidates(
        self, point: OperatingPoint, exports: Sequence[Export], passages: Sequence[Passage]
    ) -> OperatingPoint:
        """The same point, its candidates with their cold TTFT on development prompts."""
        first = FirstTokens(
            self._pair,
            lambda: self._engine,
            passages,
            self._settings.sizes.prompt,
            self._mappers,
            self._units,
            self._progress,
        )
        return replace(point, candidates=first.of(point.candidates, exports))

    def benchmark(
        self, export: Export, point: OperatingPoint, passages: Sequence[Passage], folder: Path
    ) -> BenchmarkResult:
        """``benchmark.json`` at the operating point; one that is there and fits is kept."""
        settings, notes = self._fitting(len(passages))
        drawn = [_prompts(passages, length, settings.prompts) for length in settings.lengths]
        kept = _read(folder)
        if kept is not None and self._same(kept, export, point, settings, fingerprint(drawn)):
            return kept
        self._engine.use(self._mappers(export.key).mapper, Repair(point.repair, point.prefix))
        result = Benchmark(
            self._engine,
            settings,
            lambda length, count: _prompts(passages, length, count),
            facts=export.facts,
            say=self._progress.step,
        ).run()
        result = replace(result, notes=[*notes, *result.notes])
        result.write(folder)
        return result

    def _fitting(self, passages: int) -> tuple[BenchmarkSettings, list[str]]:
        """What can be measured of what is asked, and what is left out."""
        asked, most = self._settings.speed, self._settings.sizes.length
        sides = (self._pair.source, self._pair.target)
        limit = min(int(side.config.max_position_embeddings) for side in sides)
        fitting = [n for n in asked.lengths if n <= most and n + asked.new_tokens <= limit]
        notes = [
            f"answers at {length} prompt tokens are left out: passages have {most} tokens, the "
            f"models {limit} positions"
            for length in asked.lengths
            if length not in fitting
        ]
        return replace(asked, lengths=fitting, prompts=min(asked.prompts, passages)), notes

    def _same(
        self,
        kept: BenchmarkResult,
        export: Export,
        point: OperatingPoint,
        settings: BenchmarkSettings,
        text: str,
    ) -> bool:
        """Whether a benchmark would measure the same again."""
        return (
            kept.mapper == export.facts
            and (kept.repair, kept.prefix) == (point.repair, point.prefix)
            and (kept.settings, kept.text) == (settings, text)
            and kept.source_device == place(self._pair.source)
            and kept.target_device == place(self._pair.target)
            and kept.threads == torch.get_num_threads()
            and kept.provenance.versions == Provenance().versions
        )


def _prompts(passages: Sequence[Passage], length: int, count: int) -> list[list[int]]:
    return [passage.ids[:length].tolist() for passage in passages[:count]]


def _read(folder: Path) -> BenchmarkResult | None:
    """The benchmark of an earlier call; None where there is none, or it is damaged."""
    if not (folder / FILE).is_file():
        return None
    try:
        return BenchmarkResult.read(folder)
    except KVMapError:
        return None  # measured again and replaced
