"""The page of one evaluation."""

from pathlib import Path

from kvmap.benchmark.result import FILE as BENCHMARK
from kvmap.benchmark.result import BenchmarkResult
from kvmap.errors import KVMapError
from kvmap.evaluation.report.arms_table import (
    arms_section,
    findings_section,
    questions_section,
)
from kvmap.evaluation.report.correlations import LEAST, correlations_section
from kvmap.evaluation.report.families import families_section
from kvmap.evaluation.report.handoff import handoff_section
from kvmap.evaluation.report.numbers import point_numbers
from kvmap.evaluation.report.origin import provenance_facts, text_name
from kvmap.evaluation.report.quality import (
    position_section,
    repair_section,
    replacement_section,
)
from kvmap.evaluation.report.section import Fact, Page, Section, Table
from kvmap.evaluation.report.speed import (
    blocks_section,
    lengths_section,
    mapping_section,
    panels_section,
    stages_section,
)
from kvmap.evaluation.report.training import TrainingRun, training_sections
from kvmap.evaluation.report.verdict import verdict
from kvmap.evaluation.result import EvaluationResult
from kvmap.export import ExportConfig, find_export


def evaluation_page(folder: Path) -> Page:
    """Everything that an evaluation's folder and its mapper's run have to show.

    Raises:
        KVMapError: There is no evaluation in the folder, or a file is damaged.
    """
    result = EvaluationResult.read(folder)
    benchmark = BenchmarkResult.read(folder) if (folder / BENCHMARK).is_file() else None
    run = _run(result, folder)
    sections = [
        panels_section(result, benchmark) if benchmark else None,
        arms_section(result),
        findings_section(result),
        repair_section(result),
        questions_section(result),
        families_section(result),
        correlations_section(result.operating_point),
        replacement_section(result),
        position_section(result),
        handoff_section(result),
        *(_speed_sections(benchmark) if benchmark else ()),
        *(training_sections(run) if run else ()),
        _harness(result),
    ]
    shown = [section for section in sections if section is not None]
    return Page(
        title=f"{result.mapper.family}: {result.pair}, {result.direction.replace('_', ' ')}",
        summary=verdict(result, benchmark),
        sections=shown,
        facts=_facts(result, benchmark),
        missing=_missing(result, benchmark, {section.name for section in shown}),
        numbers=point_numbers(result, benchmark),
    )


def _speed_sections(benchmark: BenchmarkResult) -> list[Section | None]:
    return [
        stages_section(benchmark),
        lengths_section(benchmark),
        blocks_section(benchmark),
        mapping_section(benchmark),
    ]


def _run(result: EvaluationResult, folder: Path) -> TrainingRun | None:
    """The run of the mapper that was evaluated: where the evaluation says, or beside it."""
    for named in (Path(result.mapper.export), *_exports_near(folder)):
        if named.exists() and _weights(named) == result.mapper.weights_sha256:
            return TrainingRun.beside(find_export(named))
    return None


def _weights(named: Path) -> str | None:
    """Digest of the weights of an export or a run; None where there is no whole export."""
    try:
        return ExportConfig.read(find_export(named)).weights_sha256
    except KVMapError:
        return None


def _exports_near(folder: Path) -> list[Path]:
    """Exports of the run or the sweep that an evaluation's folder lies in."""
    return sorted(path.parent for path in folder.parent.glob("**/export/config.json"))


def _harness(result: EvaluationResult) -> Section | None:
    if not result.harness:
        return None
    rows = [
        (each.task, each.metric, each.arm, f"{each.value:.4f}",
         "-" if each.stderr is None else f"{each.stderr:.4f}", str(each.samples),
         f"{each.repaired_share:.0%}")
        for each in result.harness
    ]  # fmt: skip
    header = ("task", "metric", "arm", "value", "standard error", "samples", "repaired")
    return Section(
        "harness",
        "Tasks of lm-evaluation-harness",
        "The harness's own numbers for each arm on the same samples, with the share of the "
        "contexts that was repaired: short contexts are repaired almost whole, and say little.",
        table=Table(header, rows),
    )


QUALITY = {
    "repair": "repair curve: fewer than two repairs were measured (curve=)",
    "questions": "four-way questions: none were asked",
    "families": "families side by side: one mapper, and no control that learns nothing beside it",
    "correlations": f"diagnostics against quality: fewer than {LEAST} mappers compared (runs=)",
    "replacements": "where the error lies: not measured (sizes.replacement=0)",
    "positions": "agreement by position: no continuation was scored",
    "handoff": "handoff over turns: not measured (sizes.conversations=0)",
}
SPEED = {
    "panels": "quality and speed at one glance: source, mapped and target were not all asked the "
    "same questions and timed together",
    "stages": "where the time goes: source and target were not both timed",
    "blocks": "block sizes and acceptance: nothing was drafted",
    "mapping": "mapping against reading: not measured (speed.map_lengths=[])",
}
"""Why a figure is not there, by the name of its section."""


def _missing(
    result: EvaluationResult, benchmark: BenchmarkResult | None, shown: set[str]
) -> list[str]:
    said = [why for name, why in QUALITY.items() if name not in shown]
    if benchmark is None:
        said.append(f"everything about speed: there is no {BENCHMARK} (speed.prompts=0)")
    else:
        said += [why for name, why in SPEED.items() if name not in shown]
        said += [f"speed: {note}" for note in benchmark.notes]
    if "layers" not in shown:
        said.append(
            "R² heatmaps, R² against k, layers: no run with the evaluated weights lies at "
            f"{result.mapper.export} or beside the evaluation"
        )
    return said


def _facts(result: EvaluationResult, benchmark: BenchmarkResult | None) -> list[Fact]:
    facts = [
        Fact("export", result.mapper.export),
        Fact("weights", f"sha256 {result.mapper.weights_sha256}"),
        Fact("source", f"{result.source.model}, revision {result.source.revision}"),
        Fact("target", f"{result.target.model}, revision {result.target.revision}"),
        Fact("text", text_name(result.data.corpus)),
        Fact("test passages", f"fingerprint {result.data.test}"),
        Fact("operating point", result.operating_point.why),
        Fact("seed", str(result.settings.seed)),
        Fact("intervals", f"95%, {result.settings.resamples} resamples of documents"),
    ]
    if result.data.development:
        facts.append(Fact("development passages", f"fingerprint {result.data.development}"))
    if benchmark is not None:
        facts.append(
            Fact(
                "speed",
                f"{benchmark.target_device}, {benchmark.threads} threads, "
                f"{benchmark.gflops:.0f} GFLOP/s, {benchmark.gbytes:.1f} GB/s",
            )
        )
        facts.append(Fact("command", benchmark.command))
    return [*facts, *provenance_facts(result.provenance)]
