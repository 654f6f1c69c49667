"""Figures of speed: the three panels, stages along the length, mapping against reading, blocks."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from kvmap.benchmark.result import ArmSpeed, BenchmarkResult, LengthSpeed
from kvmap.benchmark.result import Role as SpeedRole
from kvmap.evaluation.arms import Role
from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import (
    CHOSEN,
    MAPPED,
    SOURCE,
    STAGES,
    TARGET,
    bars_of,
    figure,
    plain,
)
from kvmap.evaluation.report.words import interval, times
from kvmap.evaluation.result import EvaluationResult

ARMS: tuple[Role, ...] = ("source", "mapped", "target")
SPEEDS: tuple[SpeedRole, ...] = ("source", "cold", "target")
"""What the three panels compare, and how a benchmark calls them."""

COLOURS = (SOURCE, MAPPED, TARGET)


def panels_section(result: EvaluationResult, benchmark: BenchmarkResult) -> Section | None:
    """Task quality, time to first token and throughput of source, mapped and target."""
    at = max(benchmark.answers, key=lambda each: each.length, default=None)
    if at is None:
        return None
    speeds = [each for role in SPEEDS if (each := at.find(role))]
    arms = [arm for name in ARMS if (arm := result.find(name))]
    if len(speeds) < len(SPEEDS) or len(arms) < len(ARMS):
        return None
    drawn = figure(10, 3.6)
    quality, first, rate = drawn.subplots(1, 3)
    names = list(ARMS)
    asked, answers = "look-ups right", [arm.lookups for arm in arms if arm.lookups]
    if len(answers) < len(arms):
        asked, answers = "choices right", [arm.choices for arm in arms if arm.choices]
    if len(answers) < len(arms):
        return None
    shares = [each.accuracy for each in answers]
    heights = [each.value for each in shares]
    quality.bar(names, heights, color=COLOURS, width=0.6)
    quality.errorbar(names, heights, bars_of(shares), fmt="none", ecolor="#333333", capsize=3)
    for place, height in enumerate(heights):
        quality.annotate(f"{height:.0%}", (place, height / 2), ha="center", color="white")
    quality.axhline(0.25, color="#777777", linestyle=":", linewidth=1)
    quality.set(title="Task quality", ylabel=f"{asked} (dotted: guessing)", ylim=(0, 1.05))
    _bars(first, names, [each.ttft_ms for each in speeds], "{:.0f} ms")
    first.set(title="Time to first token", ylabel="milliseconds, lower is better")
    _bars(rate, names, [each.tokens_per_second for each in speeds], "{:.0f}")
    rate.set(title="Throughput", ylabel="tokens per second, higher is better")
    for axes in (quality, first, rate):
        plain(axes)
    mapped = at.find("cold")
    assert mapped is not None
    rows = [
        (name, interval(right), f"{speed.ttft_ms:.1f}", f"{speed.tpot_ms:.2f}",
         f"{speed.tokens_per_second:.1f}", interval(speed.ttft), interval(speed.total))
        for name, right, speed in zip(names, shares, speeds, strict=True)
    ]  # fmt: skip
    header = (
        "",
        asked,
        "TTFT ms",
        "TPOT ms",
        "tokens/s",
        "TTFT, times faster",
        "total, times faster",
    )
    return Section(
        "panels",
        "Quality and speed at one glance",
        f"The small model alone (source), the large model on the mapped cache (mapped, with "
        f"{result.operating_point.repair} repaired tokens) and the large model alone (target). "
        f"Left: {asked} on the {result.operating_point.reported_on} set with 95% intervals. "
        f"Middle: time from request to first token for prompts of {at.length} tokens, the source's "
        f"own reading included (cold). Right: generated tokens per second of the whole answer of "
        f"{benchmark.new_tokens} tokens. Medians over {at.prompts} prompts answered by all arms in "
        f"one run; mapped is {times(mapped.ttft)} faster than the target to the first token and "
        f"{times(mapped.total)} over all. The wish is a middle bar as high as the right one on the "
        "left, and as near to the left one as may be elsewhere.",
        drawn,
        Table(header, rows),
    )


def _bars(axes: Axes, names: Sequence[str], heights: Sequence[float], form: str) -> None:
    axes.bar(names, heights, color=COLOURS, width=0.6)
    for name, height in zip(names, heights, strict=True):
        axes.annotate(
            form.format(height), (names.index(name), height), ha="center", va="bottom", fontsize=9
        )
    axes.margins(y=0.12)


def stages_section(benchmark: BenchmarkResult) -> Section | None:
    """Latency against the prompt's length with its stages stacked, mapped beside target."""
    shown = [each for each in benchmark.answers if each.find("cold") and each.find("target")]
    if not shown:
        return None
    drawn = figure(10, 4)
    axes = drawn.subplots()
    plain(axes)
    seen: set[str] = set()
    rows, ticks = [], []
    for place, at in enumerate(shown):
        for shift, arm in ((-0.2, at.find("target")), (0.2, at.find("cold"))):
            assert arm is not None
            _stack(axes, place + shift, arm, seen)
            axes.annotate(
                "target" if arm.role == "target" else "mapped",
                (place + shift, 0),
                xytext=(0, -12),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
            rows += [
                (str(at.length), arm.arm, stage.name, f"{stage.ms:.1f}",
                 "-" if stage.floor_ms is None else f"{stage.floor_ms:.1f}")
                for stage in arm.stages if stage.ms >= 0.05
            ]  # fmt: skip
        ticks.append(f"\n{at.length} tokens")
    axes.set_xticks(range(len(shown)), ticks)
    axes.set_ylabel("milliseconds for the whole answer")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    return Section(
        "stages",
        "Where the time goes, by prompt length",
        f"Median time of a whole answer of {benchmark.new_tokens} tokens, stacked by stage, for "
        f"the target reading the prompt itself and through the mapped cache, by prompt length "
        f"({shown[0].prompts} prompts each). Below the first decoding stage (draft, verify) lies "
        "the time to first token. The table has each stage beside its floor: what its products and "
        f"bytes take at this device's measured {benchmark.gflops:.0f} GFLOP/s and "
        f"{benchmark.gbytes:.1f} GB/s.",
        drawn,
        Table(("prompt tokens", "arm", "stage", "ms", "floor ms"), rows),
    )


def _stack(axes: Axes, place: float, arm: ArmSpeed, seen: set[str]) -> None:
    bottom = 0.0
    order = {name: number for number, name in enumerate(STAGES)}
    for stage in sorted(arm.stages, key=lambda each: order.get(each.name, 99)):
        label = stage.name if stage.name not in seen and stage.ms > 0.05 else None
        if label:
            seen.add(label)
        axes.bar(
            place, stage.ms, 0.36, bottom, color=STAGES.get(stage.name, "#BBBBBB"), label=label
        )
        bottom += stage.ms


def lengths_section(benchmark: BenchmarkResult) -> Section | None:
    """Every arm's latencies and their ratios."""
    if not benchmark.answers:
        return None
    rows = [
        (str(at.length), arm.arm, f"{arm.ttft_ms:.1f}", f"{arm.tpot_ms:.2f}", f"{arm.total_ms:.0f}",
         f"{arm.tokens_per_second:.1f}",
         interval(arm.ttft), interval(arm.tpot), interval(arm.total),
         "-" if arm.acceptance is None else f"{arm.acceptance:.2f}",
         " ".join(f"{peak.device} {peak.mib:.0f}" for peak in arm.peak) or "-")
        for at in benchmark.answers for arm in at.arms
    ]  # fmt: skip
    header = ("prompt tokens", "arm", "TTFT ms", "TPOT ms", "total ms", "tokens/s", "TTFT x",
              "TPOT x", "total x", "accepted", "peak MiB")  # fmt: skip
    return Section(
        "lengths",
        "Speed of every arm",
        "Medians over the same prompts; x is how many times faster than the target through the "
        "same loop, paired per prompt, with 95% intervals. Cold includes the source's reading, "
        "warm does not. Accepted: the share of drafted tokens that the target would have chosen.",
        table=Table(header, rows),
    )


def mapping_section(benchmark: BenchmarkResult) -> Section | None:
    """Making the target's cache by mapping against reading."""
    points = benchmark.mapping
    if not points:
        return None
    drawn = figure(9, 3.8)
    axes = drawn.subplots()
    plain(axes, "both")
    lengths = [each.length for each in points]
    for label, ratios, colour in (
        ("warm: the source has read the prompt already", [e.warm for e in points], MAPPED),
        ("cold: the source reads it first", [e.cold for e in points], CHOSEN),
    ):
        axes.errorbar(lengths, [e.value for e in ratios], bars_of(ratios), color=colour, marker="o",
                      capsize=3, label=label)  # fmt: skip
    axes.axhline(1, color=TARGET, linewidth=1)
    axes.annotate("as fast as reading", (lengths[-1], 1), ha="right", va="bottom", color=TARGET)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{each:,}" for each in lengths])
    axes.minorticks_off()
    axes.set(xlabel="prompt tokens", ylabel="times faster than reading", ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")
    rows = [
        (f"{e.length:,}" + (" (random KV)" if e.random_kv else ""), f"{e.read_ms:.1f}",
         f"{e.source_ms:.1f}", f"{e.map_ms:.1f}", f"{e.repair_ms:.1f}", interval(e.warm),
         interval(e.cold))
        for e in points
    ]  # fmt: skip
    header = ("prompt tokens", "target reads, ms", "source reads, ms", "map, ms", "repair, ms",
              "warm x", "cold x")  # fmt: skip
    return Section(
        "mapping",
        "Mapping a prompt against reading it",
        "How many times sooner the target's cache and first logits are there by mapping and repair "
        "than by the target's own prefill, by prompt length; bars are 95% intervals over repeats "
        "in one run. Beyond the models' trained context the mapped KV is random numbers: only "
        "speed means something there. Above 1 mapping wins.",
        drawn,
        Table(header, rows),
    )


def blocks_section(benchmark: BenchmarkResult) -> Section | None:
    """How long the drafted blocks were, and how much of them was accepted."""
    shown = [at for at in benchmark.answers if (arm := at.find("cold")) and arm.blocks]
    if not shown:
        return None
    drawn = figure(10, 3.4)
    left, right_ = drawn.subplots(1, 2, width_ratios=[3, 2])
    counts = _counts(shown)
    left.bar(list(counts), list(counts.values()), color=MAPPED, width=0.8)
    left.set(xlabel="proposed tokens in a block (0: a step without a draft)", ylabel="rounds")
    cold = [arm for at in shown if (arm := at.find("cold"))]
    accepted = [arm.acceptance or 0.0 for arm in cold]
    right_.bar(range(len(shown)), accepted, color=MAPPED, width=0.6)
    right_.set_xticks(range(len(shown)), [str(at.length) for at in shown])
    for place, share in enumerate(accepted):
        right_.annotate(f"{share:.0%}", (place, share), ha="center", va="bottom")
    right_.set(xlabel="prompt tokens", ylabel="accepted of proposed tokens", ylim=(0, 1.1))
    for axes in (left, right_):
        plain(axes)
    rows = [(str(size), str(rounds)) for size, rounds in counts.items()]
    return Section(
        "blocks",
        "Speculation: block sizes and acceptance",
        f"The small model proposes blocks of tokens, the large one checks a block in one forward. "
        f"Left: how often a block of each size was proposed, over {sum(counts.values())} rounds at "
        "all prompt lengths; the schedule lengthens blocks while they are accepted. Right: the "
        "share of proposed tokens that the target would have chosen too. The text never depends on "
        "either, only the speed does.",
        drawn,
        Table(("block size", "rounds"), rows),
    )


def _counts(shown: Sequence[LengthSpeed]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for at in shown:
        arm = at.find("cold")
        for block in arm.blocks if arm else []:
            counts[block.size] = counts.get(block.size, 0) + block.rounds
    return dict(sorted(counts.items()))
