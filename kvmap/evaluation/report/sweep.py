"""All mappers below a folder side by side, each with what was measured of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvmap.benchmark.result import FILE as BENCHMARK
from kvmap.benchmark.result import BenchmarkResult
from kvmap.errors import KVMapError
from kvmap.evaluation.candidates import exports_below
from kvmap.evaluation.report.pareto import Point, pareto
from kvmap.evaluation.report.words import mapper_name
from kvmap.evaluation.result import FILE, EvaluationResult, MapperFacts
from kvmap.evaluation.statistics import Estimate


@dataclass(frozen=True)
class Entry:
    """One mapper.

    Attributes:
        name: Its family and arguments.
        export: Its folder, told from the sweep's.
        mapper: What its export says.
        measured_on: The set of the quality; empty where nothing was measured.
        gap_closed: None where it was not measured or is not defined; so for the others.
        lookups: Share of look-ups right.
        cold_ttft: How many times sooner than from the target the first token comes.
        prompt: Prompt tokens that this was measured at.
        front: Whether no other mapper is as good and as fast, and better in one.
    """

    name: str
    export: str
    mapper: MapperFacts
    measured_on: str = ""
    gap_closed: Estimate | None = None
    lookups: Estimate | None = None
    cold_ttft: Estimate | None = None
    prompt: int = 0
    front: bool = False


def evaluations_below(root: Path) -> list[Path]:
    """Folders of evaluations, in the order of their paths."""
    return sorted(path.parent for path in root.rglob(FILE))


def entries(root: Path) -> list[Entry]:
    """Every export below a folder, the best first.

    What a sweep's evaluation says of its candidates (one run, one set of prompts) comes before
    what evaluations of single exports say.

    Raises:
        KVMapError: There is neither an export nor an evaluation, or a file is damaged.
    """
    folders = evaluations_below(root)
    known: dict[str, Entry] = {}
    for folder in folders:
        result = EvaluationResult.read(folder)
        found = _of_candidates(result) or [_of_served(result, folder)]
        for entry in found:
            previous = known.get(entry.mapper.weights_sha256)
            if previous is None or (entry.cold_ttft and not previous.cold_ttft):
                known[entry.mapper.weights_sha256] = entry
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
        digest = export.config.weights_sha256
        known.setdefault(digest, Entry(mapper_name(export.facts), export.named, export.facts))
    return _marked(sorted(known.values(), key=_worth, reverse=True))


def _of_candidates(result: EvaluationResult) -> list[Entry]:
    point = result.operating_point
    most = max((each.repair for each in point.candidates), default=0)
    return [
        Entry(
            mapper_name(each.mapper),
            each.mapper.export,
            each.mapper,
            point.chosen_on,
            each.gap_closed,
            each.lookups,
            each.cold_ttft.times if each.cold_ttft else None,
            result.settings.sizes.prompt,
        )
        for each in point.candidates
        if each.repair == most
    ]


def _of_served(result: EvaluationResult, folder: Path) -> Entry:
    arm = result.find("mapped")
    text = arm.continuation if arm else None
    speed, prompt = None, 0
    if (folder / BENCHMARK).is_file():
        answers = BenchmarkResult.read(folder).answers
        at = max(answers, key=lambda each: each.length, default=None)
        cold = at.find("cold") if at else None
        if at is not None and cold is not None:
            speed, prompt = cold.ttft, at.length
    return Entry(
        mapper_name(result.mapper),
        result.mapper.export,
        result.mapper,
        result.operating_point.reported_on,
        text.gap_closed if text else None,
        arm.lookups.accuracy if arm and arm.lookups else None,
        speed,
        prompt,
    )


def _marked(found: Sequence[Entry]) -> list[Entry]:
    """With the front marked, among those of which both quality and speed are known."""
    both = [e for e in found if e.gap_closed is not None and e.cold_ttft is not None]
    points = [
        Point(e.gap_closed.value, e.cold_ttft.value)
        for e in both
        if e.gap_closed is not None and e.cold_ttft is not None
    ]
    on_front = {id(entry) for entry, front in zip(both, pareto(points), strict=True) if front}
    return [replace(entry, front=id(entry) in on_front) for entry in found]


def _worth(entry: Entry) -> tuple[float, float]:
    gap = entry.gap_closed.value if entry.gap_closed else float("-inf")
    return gap, entry.mapper.metrics.get("val/attention_cosine") or float("-inf")
