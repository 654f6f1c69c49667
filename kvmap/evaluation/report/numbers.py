"""What a page is about, as plain numbers."""

from collections.abc import Iterator

from kvmap.benchmark.result import BenchmarkResult, Role
from kvmap.evaluation.report.section import Number
from kvmap.evaluation.report.sweep import Entry
from kvmap.evaluation.result import AnswersResult, ArmResult, EvaluationResult
from kvmap.evaluation.statistics import Estimate

TEXT = ("nll", "below_source", "above_target", "gap_closed", "context_used", "kl", "same_top")
ANSWERS = ("accuracy", "retention", "floor_normalised")
GREEDY = ("exact_match", "same_tokens", "same_start")
SPEED = ("ttft_ms", "tpot_ms", "total_ms", "tokens_per_second", "acceptance")
TIMES = ("ttft", "tpot", "total")
MAPPED: tuple[Role, ...] = ("cold", "warm")


def point_numbers(result: EvaluationResult, benchmark: BenchmarkResult | None) -> list[Number]:
    """The operating point's quality, and its speed at the longest prompt."""
    arm = result.find("mapped")
    return [*(_quality(arm) if arm else ()), *(_speed(benchmark) if benchmark else ())]


def entry_numbers(entry: Entry) -> list[Number]:
    """One mapper of a sweep."""
    estimates = (
        ("gap_closed", entry.gap_closed),
        ("lookups", entry.lookups),
        ("cold_ttft_times", entry.cold_ttft),
    )
    numbers = [_number(f"{entry.export}: {name}", each) for name, each in estimates if each]
    return [*numbers, Number(f"{entry.export}: front", float(entry.front))]


def _quality(arm: ArmResult) -> Iterator[Number]:
    yield Number("repaired_share", arm.repaired_share)
    if arm.continuation is not None:
        yield from _named(arm.continuation, TEXT, "")
    for name, answers in (("lookups", arm.lookups), ("choices", arm.choices)):
        if answers is not None:
            yield from _answers(answers, name)
    if arm.greedy is not None:
        yield from _named(arm.greedy, GREEDY, "greedy_")


def _answers(answers: AnswersResult, name: str) -> Iterator[Number]:
    yield Number(f"{name}_items", float(answers.items))
    yield from _named(answers, ANSWERS, f"{name}_")


def _speed(benchmark: BenchmarkResult) -> Iterator[Number]:
    at = max(benchmark.answers, key=lambda each: each.length, default=None)
    for role in MAPPED:
        arm = at.find(role) if at else None
        if at is None or arm is None:
            continue
        for name in SPEED:
            value = getattr(arm, name)
            if value is not None:
                yield Number(f"{role}_{name}_at_{at.length}", value)
        for name in TIMES:
            yield _number(f"{role}_{name}_times_at_{at.length}", getattr(arm, name))


def _named(holder: object, names: tuple[str, ...], prefix: str) -> Iterator[Number]:
    for name in names:
        estimate = getattr(holder, name)
        if estimate is not None:
            yield _number(f"{prefix}{name}", estimate)


def _number(name: str, estimate: Estimate) -> Number:
    return Number(name, estimate.value, estimate.low, estimate.high)
