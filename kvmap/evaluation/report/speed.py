"""Figures of speed: the three panels, stages along the length, mapping against reading, blocks."""

from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from kvmap.benchmark.result import ArmSpeed, BenchmarkResult, LengthSpeed, ReadOrMap
from kvmap.benchmark.result import Role as SpeedRole
from kvmap.evaluation.arms import Role
from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import (
    DECODING,
    INK,
    MAPPED,
    SOURCE,
    STAGES,
    TARGET,
    bars_of,
    figure,
    plain,
    say,
)
from kvmap.evaluation.report.words import interval, times
from kvmap.evaluation.result import EvaluationResult
from kvmap.evaluation.statistics import Estimate

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
    asked, answers = "look-ups right", [arm.lookups for arm in arms if arm.lookups]
    if len(answers) < len(arms):
        asked, answers = "choices right", [arm.choices for arm in arms if arm.choices]
    if len(answers) < len(arms):
        return None
    drawn = figure(10, 3.9)
    quality, first, rate = drawn.subplots(1, 3)
    names = list(ARMS)
    shares = [each.accuracy for each in answers]
    heights = [each.value for each in shares]
    quality.bar(names, heights, color=COLOURS, width=0.62)
    quality.errorbar(names, heights, bars_of(shares), fmt="none", ecolor=INK, capsize=3)
    for place, height in enumerate(heights):
        say(quality, f"{height:.0%}", (place, height / 2), "white", ha="center", xytext=(0, 0),
            fontsize=11, fontweight="bold")  # fmt: skip
    quality.axhline(answers[0].chance, color=INK, linestyle=":", linewidth=1.2)
    quality.set(ylabel=f"{asked} (dotted: guessing)", ylim=(0, 1.08))
    _bars(first, [each.ttft_ms for each in speeds], [each.ttft for each in speeds], "{:.0f} ms")
    first.set_ylabel("milliseconds")
    ratios = [each.total for each in speeds]
    _bars(rate, [each.tokens_per_second for each in speeds], ratios, "{:.0f}/s")
    rate.set_ylabel("tokens per second")
    for axes, title, better in (
        (quality, "Task quality", "higher"),
        (first, "Time to first token", "lower"),
        (rate, "Throughput", "higher"),
    ):
        plain(axes)
        axes.set_title(f"{title} ({better} is better)", fontsize=10.5)
        axes.set_xticks(range(len(names)), names, fontsize=10.5)
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
    items = sorted({each.items for each in answers})
    return Section(
        "panels",
        "Quality and speed at one glance",
        f"The small model alone (source), the large model on the mapped cache (mapped, with "
        f"{result.operating_point.repair} repaired tokens) and the large model alone (target). "
        f"Left: {asked}, of {' or '.join(map(str, items))} on the "
        f"{result.operating_point.reported_on} set, bars are 95% intervals over documents. "
        f"Middle: time from request to first token for prompts of {at.length} tokens, the source's "
        f"own reading included (cold). Right: generated tokens per second of the whole answer of "
        f"{benchmark.new_tokens} tokens. Both are medians over {at.prompts} prompts answered by "
        "all arms in one run; below each number stands how many times faster than the target that "
        "is, paired per prompt, with its 95% interval. Mapping is worth it when its bar is as high "
        "as the target's on the left and clearly better than the target's in the middle and on the "
        f"right: here it is {times(mapped.ttft)} faster to the first token and "
        f"{times(mapped.total)} over all.",
        drawn,
        Table(header, rows),
    )


def _bars(axes: Axes, heights: Sequence[float], ratios: Sequence[Estimate], form: str) -> None:
    axes.bar(range(len(heights)), heights, color=COLOURS, width=0.62)
    for place, (height, ratio) in enumerate(zip(heights, ratios, strict=True)):
        say(axes, form.format(height), (place, height), INK, ha="center", xytext=(0, 16),
            fontsize=10, fontweight="bold")  # fmt: skip
        told = f"{times(ratio)} [{ratio.low:.1f}, {ratio.high:.1f}]" if ratio.value != 1 else "1x"
        say(axes, told, (place, height), INK, ha="center", xytext=(0, 4), fontsize=7.5)
    axes.margins(y=0.2)


def stages_section(benchmark: BenchmarkResult) -> Section | None:
    """Latency against the prompt's length with its stages stacked: source, mapped, target."""
    shown = [each for each in benchmark.answers if each.find("cold") and each.find("target")]
    if not shown:
        return None
    drawn = figure(10, 4.2)
    axes = drawn.subplots()
    plain(axes)
    rows, ticks, names = [], [], []
    drawn_stages: set[str] = set()
    least = 0.002 * max(arm.total_ms for at in shown for arm in at.arms)
    for place, at in enumerate(shown):
        for role, label, shift in STACKED:
            arm = at.find(role)
            if arm is None:
                continue
            drawn_stages |= _stack(axes, place + shift, arm, least)
            ticks.append(place + shift)
            names.append(f"{label}\n{at.length:,}")
            rows += [
                (str(at.length), arm.arm, stage.name, f"{stage.ms:.1f}",
                 "-" if stage.floor_ms is None else f"{stage.floor_ms:.1f}")
                for stage in arm.stages if stage.ms >= 0.05
            ]  # fmt: skip
    axes.set_xticks(ticks, names, fontsize=9)
    axes.set(xlabel="arm, and tokens of prompt", ylabel="milliseconds for the whole answer")
    axes.margins(y=0.1)
    handles: list[Artist] = [
        Patch(color=STAGES[name], label=name) for name in reversed(STAGES) if name in drawn_stages
    ]
    handles.append(Line2D([], [], label="first token", **_line()))
    drawn.legend(handles=handles, frameon=False, fontsize=9, loc="outside right center")
    return Section(
        "stages",
        "Where the time goes, by prompt length",
        f"Median time of a whole answer of {benchmark.new_tokens} tokens, stacked by stage, of the "
        "source alone, through the mapped cache, and of the target alone, by prompt length "
        f"({shown[0].prompts} prompts each); above a bar stands the median of the whole, which "
        "need not be the sum of its stages' medians. Orange is the source's work, blue mapping, "
        "green the target's; a model that answers alone has its steps in the colour of draft "
        "(source) or verify (target). The white line is the first token: what lies below it is "
        "the wait for it. Lower is better; the largest block is what is worth making faster. The "
        "table has each stage beside its floor: what its products and bytes take at this device's "
        f"measured {benchmark.gflops:.0f} GFLOP/s and {benchmark.gbytes:.1f} GB/s.",
        drawn,
        Table(("prompt tokens", "arm", "stage", "ms", "floor ms"), rows),
    )


STACKED: tuple[tuple[SpeedRole, str, float], ...] = (
    ("source", "source", -0.28),
    ("cold", "mapped", 0.0),
    ("target", "target", 0.28),
)
WIDTH = 0.25
SOURCE_ALONE = {"prefill": STAGES["source prefill"], "verify": STAGES["draft"]}
"""The source's own bar: the same work as beside the target, so the same colours."""


def _line() -> dict[str, Any]:
    """How the first token's line looks: white with a dark rim, visible on every stage."""
    rim = withStroke(linewidth=3.2, foreground=INK)
    return {"color": "white", "linewidth": 1.6, "path_effects": [rim]}


def _stack(axes: Axes, place: float, arm: ArmSpeed, least: float) -> set[str]:
    """One bar; returns the stages that can be seen in it."""
    order = list(STAGES)
    stages = sorted(
        arm.stages, key=lambda each: order.index(each.name) if each.name in order else len(order)
    )
    bottom, first = 0.0, 0.0
    own = SOURCE_ALONE if arm.role == "source" else STAGES
    for stage in stages:
        axes.bar(place, stage.ms, WIDTH, bottom, color=own.get(stage.name, "#BBBBBB"))
        bottom += stage.ms
        first += stage.ms if stage.name in STAGES and stage.name not in DECODING else 0.0
    half = WIDTH / 2
    axes.plot([place - half, place + half], [first, first], solid_capstyle="butt", **_line())
    say(axes, f"{arm.total_ms:.0f} ms", (place, bottom), INK, ha="center", xytext=(0, 3))
    return {stage.name for stage in stages if stage.ms >= least}


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
    drawn = figure(10, 4)
    times_axes, ratio_axes = drawn.subplots(1, 2)
    lengths = [each.length for each in points]
    for label, spent, colour, dash in (
        ("target reads", [e.read_ms for e in points], TARGET, "-"),
        ("mapped, cold", [e.source_ms + e.map_ms + e.repair_ms for e in points], MAPPED, "-"),
        ("mapped, warm", [e.map_ms + e.repair_ms for e in points], MAPPED, "--"),
        ("source reads", [e.source_ms for e in points], SOURCE, "-"),
    ):
        times_axes.plot(lengths, spent, color=colour, marker="o", markersize=4, linestyle=dash,
                        label=label)  # fmt: skip
    times_axes.set_yscale("log")
    times_axes.yaxis.set_major_formatter("{x:g}")
    times_axes.set_ylabel("milliseconds to the first token")
    for label, ratios, dash in (
        ("cold", [e.cold for e in points], "-"),
        ("warm", [e.warm for e in points], "--"),
    ):
        _, caps, bars = ratio_axes.errorbar(
            lengths, [e.value for e in ratios], bars_of(ratios), color=MAPPED, marker="o",
            markersize=4, capsize=3, linestyle=dash, label=f"mapped, {label}",
        )  # fmt: skip
        for part in (*caps, *bars):
            part.set_alpha(0.6)
    ratio_axes.axhline(1, color=TARGET, linewidth=1.2)
    say(ratio_axes, "as fast as reading", (lengths[-1], 1), TARGET, ha="right", xytext=(0, 3))
    ratio_axes.set_ylabel("times faster than the target reads")
    ratio_axes.set_ylim(bottom=0)
    for axes in (times_axes, ratio_axes):
        plain(axes, "both")
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [_short(each) for each in lengths])
        axes.minorticks_off()
        axes.set_xlabel("prompt tokens")
        axes.legend(frameon=False, loc="upper left", fontsize=9)
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
        "How long it takes until the target's cache and first token are there, by prompt length: "
        "median milliseconds on the left, and on the right how many times sooner by mapping and "
        f"repair than by the target's own prefill, paired over {_repeats(points)} repeats in one "
        "run (bars are 95% intervals). Cold: the source reads the prompt first; warm: it has read "
        "it already. Above 1 mapping wins; a line that climbs wins more the longer the prompt. "
        "Lengths marked in the table lie beyond the models' trained context: there the mapped KV "
        "is random numbers and only speed means something.",
        drawn,
        Table(header, rows),
    )


def _repeats(points: Sequence[ReadOrMap]) -> str:
    counts = sorted({each.repeats for each in points})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)


def blocks_section(benchmark: BenchmarkResult) -> Section | None:
    """How long the drafted blocks were, and how much of them was accepted."""
    shown = [at for at in benchmark.answers if (arm := at.find("cold")) and arm.blocks]
    if not shown:
        return None
    drawn = figure(10, 3.6)
    left, right_ = drawn.subplots(1, 2, width_ratios=[3, 2])
    counts = _counts(shown)
    rounds_in_all = sum(counts.values())
    left.bar(list(counts), list(counts.values()), color=MAPPED, width=0.8)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set(xlabel="proposed tokens in a block (0: a step without a draft)", ylabel="rounds")
    cold = [arm for at in shown if (arm := at.find("cold"))]
    accepted = [arm.acceptance for arm in cold]
    right_.bar(range(len(shown)), [each or 0.0 for each in accepted], color=MAPPED, width=0.6)
    right_.set_xticks(range(len(shown)), [f"{at.length:,}" for at in shown])
    for place, share in enumerate(accepted):
        told = "not told" if share is None else f"{share:.0%}"
        say(right_, told, (place, share or 0.0), INK, ha="center", xytext=(0, 3))
    right_.set(xlabel="prompt tokens", ylabel="accepted of proposed tokens", ylim=(0, 1.1))
    for axes in (left, right_):
        plain(axes)
    rows = [(str(size), str(rounds)) for size, rounds in counts.items()]
    return Section(
        "blocks",
        "Speculation: block sizes and acceptance",
        "The small model proposes blocks of tokens, the large one checks a block in one forward. "
        f"Left: how often a block of each size was proposed, over {rounds_in_all} rounds at all "
        f"prompt lengths ({sum(at.prompts for at in shown)} prompts, answers of "
        f"{benchmark.new_tokens} tokens); the schedule lengthens blocks while they are accepted, "
        "so much weight on the right is good, many rounds at 0 mean that drafting did not pay. "
        "Right: the share of proposed tokens that the target would have chosen too; nearer to 1 "
        "is better. The text never depends on either, only the speed does.",
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
