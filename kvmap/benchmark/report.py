"""What a benchmark prints and keeps."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from kvmap.benchmark.arms import Timing
from kvmap.benchmark.measure import Sample, paired_ratio
from kvmap.evaluation.statistics import Estimate

HEADER = (
    "arm",
    "TTFT ms",
    "TPOT ms",
    "total ms",
    "tok/s",
    "TTFT x",
    "TPOT x",
    "total x",
    "accepted",
)


@dataclass(frozen=True)
class Row:
    """One arm at one length; medians, and how many times faster than the baseline.

    Attributes:
        arm: Its name.
        ttft_ms: Milliseconds to the first token.
        tpot_ms: Milliseconds per token after it.
        total_ms: Milliseconds to the last token.
        ttft: Baseline's TTFT / this, paired per prompt.
        tpot: Likewise.
        total: Likewise.
        acceptance: Accepted / proposed tokens; None without a draft.
    """

    arm: str
    ttft_ms: float
    tpot_ms: float
    total_ms: float
    ttft: Estimate
    tpot: Estimate
    total: Estimate
    acceptance: float | None

    def cells(self, new_tokens: int) -> tuple[str, ...]:
        """As text."""
        return (
            self.arm,
            f"{self.ttft_ms:.1f}",
            f"{self.tpot_ms:.2f}",
            f"{self.total_ms:.0f}",
            f"{1000 * new_tokens / self.total_ms:.1f}",
            *map(_times, (self.ttft, self.tpot, self.total)),
            "" if self.acceptance is None else f"{self.acceptance:.2f}",
        )


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def rows(samples: Sequence[Sample], baseline: str) -> list[Row]:
    """One row an arm, from samples of one length."""
    by_arm: dict[str, list[Timing]] = {}
    for sample in samples:
        by_arm.setdefault(sample.arm, []).append(sample.timing)

    def ratio(arm: str, read: Callable[[Timing], float]) -> Estimate:
        return paired_ratio([read(t) for t in by_arm[baseline]], [read(t) for t in by_arm[arm]])

    return [
        Row(
            arm,
            1000 * median(t.ttft for t in timings),
            1000 * median(t.tpot for t in timings),
            1000 * median(t.latency for t in timings),
            ratio(arm, lambda t: t.ttft),
            ratio(arm, lambda t: t.tpot),
            ratio(arm, lambda t: t.latency),
            _acceptance(timings),
        )
        for arm, timings in by_arm.items()
    ]


def _acceptance(timings: Sequence[Timing]) -> float | None:
    stats = [t.stats for t in timings if t.stats is not None]
    proposed = sum(each.proposed for each in stats)
    return sum(each.accepted for each in stats) / proposed if proposed else None


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(
        [
            "| " + " | ".join(header) + " |",
            "|" + "---|" * len(header),
            *("| " + " | ".join(line) + " |" for line in lines),
        ]
    )


def stage_table(timings: Sequence[Timing], floors: Sequence[dict[str, float]]) -> str:
    """Median milliseconds of each stage beside the floor, over answers of one arm."""
    stages = [t.stats.stages.seconds for t in timings if t.stats is not None]
    lines = []
    for name in stages[0]:
        spent = 1000 * median(each.get(name, 0.0) for each in stages)
        floor = 1000 * median(each.get(name, 0.0) for each in floors)
        share = f"{100 * floor / spent:.0f}%" if floor and spent else ""
        lines.append((name, f"{spent:.1f}", f"{floor:.1f}" if floor else "", share))
    return markdown(("stage", "ms", "floor ms", "floor / measured"), lines)


def plain(sample: Sample) -> dict[str, Any]:
    """A sample in plain values, for JSON."""
    timing = sample.timing
    kept: dict[str, Any] = {
        "arm": sample.arm,
        "length": sample.length,
        "prompt": sample.prompt,
        "ttft_s": timing.ttft,
        "latency_s": timing.latency,
        "tokens": list(timing.tokens),
    }
    if timing.stats is not None:
        stats = asdict(timing.stats)
        stats["stages"] = timing.stats.stages.seconds
        kept["stats"] = stats
    return kept
