"""A benchmark as tables, and its samples as plain values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvmap.benchmark.floors import Rates
from kvmap.benchmark.measure import Sample
from kvmap.benchmark.result import ArmSpeed, BenchmarkResult, LengthSpeed, ReadOrMap
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
    "peak MiB",
)


def length_table(speed: LengthSpeed, new_tokens: int) -> str:
    """All arms at one length, then the stages of the native target and of the mapped path."""
    parts = [
        f"\n{speed.length} prompt tokens, {new_tokens} new, {speed.prompts} prompts\n",
        markdown(HEADER, [_arm(arm) for arm in speed.arms]),
    ]
    for role in ("target", "cold"):
        arm = speed.find(role)
        if arm is not None:
            parts += [f"\n{arm.arm}\n", stage_table(arm)]
            if arm.blocks:
                blocks = ", ".join(f"{each.size} ({each.rounds} rounds)" for each in arm.blocks)
                parts.append(f"\nproposed tokens of a block: {blocks}")
    return "\n".join(parts)


def _arm(arm: ArmSpeed) -> tuple[str, ...]:
    return (
        arm.arm,
        f"{arm.ttft_ms:.1f}",
        f"{arm.tpot_ms:.2f}",
        f"{arm.total_ms:.0f}",
        f"{arm.tokens_per_second:.1f}",
        *map(times, (arm.ttft, arm.tpot, arm.total)),
        "" if arm.acceptance is None else f"{arm.acceptance:.2f}",
        ", ".join(f"{peak.device} {peak.mib:.0f}" for peak in arm.peak),
    )


def stage_table(arm: ArmSpeed) -> str:
    """Median milliseconds of each stage beside its floor."""
    lines = []
    for stage in arm.stages:
        floor = stage.floor_ms
        share = f"{100 * floor / stage.ms:.0f}%" if floor and stage.ms else ""
        lines.append((stage.name, f"{stage.ms:.1f}", f"{floor:.1f}" if floor else "", share))
    return markdown(("stage", "ms", "floor ms", "floor / measured"), lines)


def mapping_table(found: Sequence[ReadOrMap]) -> str:
    """Mapping against reading, a line a length."""
    header = ("tokens", "read ms", "source ms", "map ms", "repair ms", "warm x", "cold x",
              "repeats", "KV")  # fmt: skip
    lines = [
        (
            f"{each.length}",
            f"{each.read_ms:.1f}",
            f"{each.source_ms:.1f}",
            f"{each.map_ms:.1f}",
            f"{each.repair_ms:.1f}",
            times(each.warm),
            times(each.cold),
            f"{each.repeats}",
            "random" if each.random_kv else "the source's",
        )
        for each in found
    ]
    return f"\nThe target reads a prompt, or its KV is mapped\n\n{markdown(header, lines)}"


def speed_line(result: BenchmarkResult) -> str:
    """The longest prompts' ratios in one sentence, mapped against the native target."""
    if not result.answers:
        return "no answers were timed"
    longest = max(result.answers, key=lambda each: each.length)
    told = [
        f"first token {times(arm.ttft)}, whole answer {times(arm.total)} times sooner {arm.role}"
        for arm in (longest.find("cold"), longest.find("warm"))
        if arm is not None
    ]
    return f"speed at {longest.length} prompt tokens, mapped against native: " + "; ".join(told)


def rates_line(device: str, threads: int, rates: Rates) -> str:
    """What floors are counted with."""
    return (
        f"{device}, {threads} threads: {rates.flops / 1e9:.0f} GFLOP/s in a product, "
        f"{rates.bytes / 1e9:.1f} GB/s in a copy"
    )


def times(ratio: Estimate) -> str:
    """How many times faster, with its interval."""
    return ratio.told(2)


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(
        [
            "| " + " | ".join(header) + " |",
            "|" + "---|" * len(header),
            *("| " + " | ".join(line) + " |" for line in lines),
        ]
    )


def sample_values(sample: Sample) -> dict[str, Any]:
    """A sample in plain values, for JSON."""
    timing = sample.timing
    kept: dict[str, Any] = {
        "arm": sample.arm,
        "length": sample.length,
        "prompt": sample.prompt,
        "ttft_s": timing.ttft,
        "latency_s": timing.latency,
        "generated": timing.generated,
        "tokens": list(timing.tokens),
    }
    if timing.stats is not None:
        stats = asdict(timing.stats)
        stats["stages"] = timing.stats.stages.seconds
        kept["stats"] = stats
    return kept
