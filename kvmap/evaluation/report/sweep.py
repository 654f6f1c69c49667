"""All mappers below a folder side by side, each with what was measured of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kvmap.benchmark.result import FILE as BENCHMARK
from kvmap.benchmark.result import BenchmarkResult, LengthSpeed
from kvmap.errors import KVMapError
from kvmap.evaluation.candidates import exports_below
from kvmap.evaluation.findings import disagreement
from kvmap.evaluation.report.pareto import Point, pareto
from kvmap.evaluation.report.words import mapper_names
from kvmap.evaluation.result import FILE, Candidate, EvaluationResult, MapperFacts
from kvmap.evaluation.statistics import Estimate

Measure = Literal["gap closed", "context used"]


@dataclass(frozen=True)
class Entry:
    """One mapper.

    Attributes:
        name: Its family and arguments.
        export: Its folder.
        mapper: What its export says.
        measured_on: The set of the quality; empty where nothing was measured.
        text: Pair, direction, set and fingerprint of what it was measured on: mappers with another
            cannot be compared with it.
        gap_closed: None where it was not measured or is not defined; so for the others.
        context_used: Share of what the prompt gives beyond the window.
        lookups: Share of look-ups right.
        disagreement: What likelihood and look-ups disagree on; empty where they agree.
        cold_ttft: How many times sooner than from the target the first token comes.
        prompt: Prompt tokens that this was measured at.
        front: Whether no other mapper, nor a model alone, is as good and as fast, and better in
            one.
    """

    name: str
    export: str
    mapper: MapperFacts
    measured_on: str = ""
    text: str = ""
    gap_closed: Estimate | None = None
    context_used: Estimate | None = None
    lookups: Estimate | None = None
    disagreement: str = ""
    cold_ttft: Estimate | None = None
    prompt: int = 0
    front: bool = False

    def quality(self, measure: Measure) -> Estimate | None:
        """The likelihood's measure of a comparison."""
        return self.gap_closed if measure == "gap closed" else self.context_used


@dataclass(frozen=True)
class Alone:
    """The source without a mapper, in the measures of a comparison; the target is at (1, 1).

    Attributes:
        quality: In the comparison's measure; 0 where that is gap closed.
        ttft: How many times sooner than from the target its first token comes.
    """

    quality: float
    ttft: float


@dataclass(frozen=True)
class Comparison:
    """Mappers of one pair that were measured on one text, so that they can be compared.

    Attributes:
        text: Pair, direction and the text's fingerprint; empty where nothing was measured.
        entries: Best first.
        measure: Of quality: gap closed, or context used where no gap is wide enough.
        source: The source alone; None where its speed was not measured.
    """

    text: str
    entries: list[Entry]
    measure: Measure
    source: Alone | None

    @property
    def measured(self) -> list[Entry]:
        """Those of which both quality and speed are known."""
        return [e for e in self.entries if e.quality(self.measure) and e.cold_ttft]


def evaluations_below(root: Path) -> list[Path]:
    """Folders of evaluations, in the order of their paths."""
    return sorted(path.parent for path in root.rglob(FILE))


def compare(root: Path) -> list[Comparison]:
    """Every export below a folder, once: by text, the text of most mappers first, fronts marked.

    What an evaluation of several exports says of its candidates (one run, one set of prompts)
    comes before what evaluations of single exports say. Exports that nobody evaluated come last.

    Raises:
        KVMapError: There is neither an export nor an evaluation, or a file is damaged.
    """
    results = [(EvaluationResult.read(folder), folder) for folder in evaluations_below(root)]
    results.sort(key=lambda each: -len(each[0].operating_point.candidates))
    known: dict[str, Entry] = {}
    for result, folder in results:
        for entry in _of_candidates(result) or [_of_served(result, folder)]:
            known.setdefault(entry.mapper.weights_sha256, entry)
    try:
        exports = exports_below(root)
    except KVMapError:
        if not known:
            raise KVMapError(
                f"neither an export nor an evaluation in {root}; train and evaluate first: "
                "python train.py, kvmap-evaluate"
            ) from None
        exports = []
    for export in exports:
        known.setdefault(export.config.weights_sha256, Entry("", export.named, export.facts))
    names = mapper_names([each.mapper for each in known.values()])
    found = [replace(each, name=name) for each, name in zip(known.values(), names, strict=True)]
    texts = sorted({each.text for each in found}, key=lambda text: (not text, -_count(found, text)))
    return [
        _comparison(
            text,
            [each for each in found if each.text == text],
            [folder for result, folder in results if text in _texts(result)],
        )
        for text in texts
    ]


def _count(found: Sequence[Entry], text: str) -> int:
    return sum(each.text == text for each in found)


def _comparison(text: str, entries: list[Entry], folders: Sequence[Path]) -> Comparison:
    gaps = any(each.gap_closed for each in entries)
    measure: Measure = "gap closed" if gaps or not text else "context used"
    ranked = sorted(entries, key=lambda each: _worth(each, measure), reverse=True)
    return _marked(Comparison(text, ranked, measure, _source(folders, measure)))


def _texts(result: EvaluationResult) -> list[str]:
    return [_text(result, each) for each in (result.data.development, result.data.test)]


def _of_candidates(result: EvaluationResult) -> list[Entry]:
    point = result.operating_point
    most = max((each.repair for each in point.candidates), default=0)
    return [
        Entry(
            "",
            each.mapper.export,
            each.mapper,
            point.chosen_on,
            _text(result, result.data.development),
            each.gap_closed,
            each.context_used,
            each.lookups,
            disagreement_of(each) or "",
            each.cold_ttft.times if each.cold_ttft else None,
            result.settings.sizes.prompt,
        )
        for each in point.candidates
        if each.repair == most
    ]


def _text(result: EvaluationResult, fingerprint: str) -> str:
    return f"{result.pair} {result.direction.replace('_', ' ')} on {fingerprint}"


def disagreement_of(candidate: Candidate) -> str | None:
    """What likelihood and look-ups of a candidate disagree on."""
    likelihood = candidate.gap_closed or candidate.context_used
    return disagreement(likelihood, candidate.lookups_floor_normalised)


def _of_served(result: EvaluationResult, folder: Path) -> Entry:
    arm = result.find("mapped")
    text, lookups = (arm.continuation, arm.lookups) if arm else (None, None)
    at = _longest(folder)
    cold = at.find("cold") if at else None
    likelihood = (text.gap_closed or text.context_used) if text else None
    return Entry(
        "",
        result.mapper.export,
        result.mapper,
        result.operating_point.reported_on,
        _text(result, result.data.test),
        text.gap_closed if text else None,
        text.context_used if text else None,
        lookups.accuracy if lookups else None,
        disagreement(likelihood, lookups.floor_normalised if lookups else None) or "",
        cold.ttft if cold else None,
        at.length if at and cold else 0,
    )


def _longest(folder: Path) -> LengthSpeed | None:
    """A benchmark's longest prompts."""
    if not (folder / BENCHMARK).is_file():
        return None
    answers = BenchmarkResult.read(folder).answers
    return max(answers, key=lambda each: each.length, default=None)


def _source(folders: Sequence[Path], measure: Measure) -> Alone | None:
    """The source alone, of the first evaluation that timed it."""
    for folder in folders:
        at = _longest(folder)
        arm = at.find("source") if at else None
        if arm is None:
            continue
        if measure == "gap closed":
            return Alone(0.0, arm.ttft.value)
        source = EvaluationResult.read(folder).find("source")
        used = source.continuation.context_used if source and source.continuation else None
        if used is not None:
            return Alone(used.value, arm.ttft.value)
    return None


def _marked(comparison: Comparison) -> Comparison:
    """With the front marked, among mappers of which quality and speed are known."""
    both = comparison.measured
    points = [Point(*_place(each, comparison.measure)) for each in both] + [Point(1.0, 1.0)]
    if comparison.source is not None:
        points.append(Point(comparison.source.quality, comparison.source.ttft))
    on_front = {id(entry) for entry, front in zip(both, pareto(points), strict=False) if front}
    marked = [replace(each, front=id(each) in on_front) for each in comparison.entries]
    return replace(comparison, entries=marked)


def _place(entry: Entry, measure: Measure) -> tuple[float, float]:
    quality = entry.quality(measure)
    if quality is None or entry.cold_ttft is None:
        raise ValueError(f"{entry.export} was not measured")
    return quality.value, entry.cold_ttft.value


def _worth(entry: Entry, measure: Measure) -> tuple[float, float]:
    quality = entry.quality(measure)
    gap = quality.value if quality else float("-inf")
    return gap, entry.mapper.metrics.get("val/attention_cosine") or float("-inf")
