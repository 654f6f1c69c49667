"""Figures of the served arm's quality: repair, agreement by position, what exact parts save."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from kvmap.evaluation.arms import Role
from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import (
    CHOSEN,
    CONTROL,
    INK,
    MAPPED,
    SOURCE,
    TARGET,
    bars_of,
    colour_of,
    figure,
    plain,
    say,
)
from kvmap.evaluation.report.words import interval, right
from kvmap.evaluation.result import ArmResult, EvaluationResult
from kvmap.evaluation.statistics import Curve, Estimate

BOUNDS: tuple[tuple[Role, str], ...] = (("source", SOURCE), ("target", TARGET))
ALONG: tuple[Role, ...] = ("window", "source", "mapped", "exact")
DASHES: dict[Role, str] = {"window": "--", "exact": ":"}
SMOOTH = 9
"""Positions that a drawn line averages over."""


def repair_section(result: EvaluationResult) -> Section | None:
    """Quality against the number of repaired tokens."""
    arms = {arm.name: arm for arm in result.arms}
    curve = [arms[name] for name in result.curve if name in arms]
    if len(curve) < 2:
        return None
    drawn = figure(10, 3.8)
    left, middle = drawn.subplots(1, 2)
    gaps = [arm.continuation.gap_closed if arm.continuation else None for arm in curve]
    looks = [arm.lookups.accuracy if arm.lookups else None for arm in curve]
    served = result.operating_point.repair
    _curve(left, curve, gaps, served, "gap closed")
    _curve(middle, curve, looks, served, "look-ups right")
    last = len(curve) - 1
    middle.axhline(0.25, color=CONTROL, linestyle=":", linewidth=1.2)
    say(middle, "guessing", (last, 0.25), CONTROL, ha="right", xytext=(0, 3))
    for axes, task in ((left, "continuation"), (middle, "lookups")):
        for role, colour in BOUNDS:
            level = _level(result.find(role), task)
            if level is not None:
                axes.axhline(level, color=colour, linewidth=1.2, zorder=1)
                say(axes, f"{role} alone", (-0.3, level), colour)
    middle.set_ylim(0, 1.1)
    rows = [
        (
            str(arm.arm.repair),
            f"{arm.repaired_share:.1%}",
            interval(arm.continuation.gap_closed) if arm.continuation else "-",
            interval(arm.continuation.context_used) if arm.continuation else "-",
            right(arm.lookups),
        )
        for arm in curve
    ]
    passages = next((arm.continuation.passages for arm in curve if arm.continuation), 0)
    asked = sorted({arm.lookups.items for arm in curve if arm.lookups})
    header = ("repaired tokens", "share of the prompt", "gap closed", "context used",
              "look-ups right")  # fmt: skip
    return Section(
        "repair",
        "Repair: how many last tokens the target reads itself",
        "Quality of the mapped cache against the number of last prompt tokens that the target "
        f"recomputes, with their share of the prompt below ({result.operating_point.reported_on} "
        f"set, {passages} passages{_looked(asked)}; bars are 95% intervals over documents; with 0 "
        "asked the last token is still read, since there are no first logits without it). Left, "
        "the share of the distance from source to target that is closed in continuation NLL; "
        "right, the share of look-ups right. Up is better. The ring is what is served. A flat "
        "curve means that the mapped cache itself is good; a rising one that the repaired tokens "
        "do the work.",
        drawn,
        Table(header, rows),
    )


def _looked(asked: Sequence[int]) -> str:
    if not asked:
        return ""
    counts = str(asked[0]) if len(asked) == 1 else f"{asked[0]} to {asked[-1]}"
    return f", {counts} look-ups"


def _curve(
    axes: Axes,
    curve: Sequence[ArmResult],
    estimates: Sequence[Estimate | None],
    served: int,
    label: str,
) -> None:
    plain(axes)
    axes.set(xlabel="repaired tokens (share of the prompt)", ylabel=label)
    ticks = [f"{arm.arm.repair}\n{arm.repaired_share:.1%}" for arm in curve]
    axes.set_xticks(range(len(curve)), ticks)
    axes.set_xlim(-0.4, len(curve) - 0.6)
    known = [(x, y) for x, y in enumerate(estimates) if y is not None]
    if not known:
        return
    xs, ys = zip(*known, strict=True)
    axes.errorbar(xs, [y.value for y in ys], bars_of(ys), color=MAPPED, marker="o", capsize=3)
    for x, y in known:
        if curve[x].arm.repair == served:
            axes.plot([x], [y.value], marker="o", markersize=12, color=MAPPED, fillstyle="none")


def _level(arm: ArmResult | None, task: str) -> float | None:
    if arm is None:
        return None
    if task == "continuation":
        return 0.0 if arm.arm.role == "source" else 1.0
    return arm.lookups.accuracy.value if arm.lookups else None


def position_section(result: EvaluationResult) -> Section | None:
    """Agreement with the target by position after the prompt."""
    arms = [arm for role in ALONG if (arm := result.find(role)) and arm.continuation]
    if not arms:
        return None
    drawn = figure(10, 3.8)
    left, right_ = drawn.subplots(1, 2)
    rows = []
    shared = 0
    for arm in arms:
        text = arm.continuation
        assert text is not None
        shared = text.passages
        _line(left, text.same_top_by_position, arm)
        _line(right_, text.kl_by_position, arm)
        rows.append((arm.name, interval(text.same_top), interval(text.kl, 3)))
    left.set(xlabel="tokens after the prompt", ylabel="same likeliest token as the target")
    left.set_ylim(top=1.02)
    right_.set(xlabel="tokens after the prompt", ylabel="KL(target ‖ arm), nats")
    right_.set_yscale("symlog", linthresh=0.01)
    right_.set_ylim(bottom=0)
    for axes in (left, right_):
        plain(axes)
    drawn.legend(*left.get_legend_handles_labels(), frameon=False, fontsize=9, ncols=len(arms),
                 loc="outside upper center")  # fmt: skip
    return Section(
        "positions",
        "Agreement with the target, token by token",
        f"How often an arm finds the same next token likeliest as the target does (left, higher is "
        f"better) and how far its distribution is from the target's (right, lower is better), by "
        f"position along the text's own continuation; dots are means over {shared} "
        f"{result.operating_point.reported_on} passages, lines average {SMOOTH} neighbouring "
        "positions, the band is the mapped arm's 95% interval. A mapped line near exact is good, "
        "one near source or window is not worth the trouble; one that leaves exact further along "
        "would mean that errors of the cache build up.",
        drawn,
        Table(("arm", "same likeliest token", "KL, nats"), rows),
    )


def _line(axes: Axes, curve: Curve, arm: ArmResult) -> None:
    role = arm.arm.role
    colour = colour_of(role)
    places = np.arange(1, len(curve.values) + 1)
    axes.plot(places, curve.values, ".", color=colour, markersize=2.5, alpha=0.3)
    axes.plot(
        places,
        smoothed(curve.values),
        color=colour,
        linewidth=1.8,
        linestyle=DASHES.get(role, "-"),
        label=arm.name,
    )
    if role == "mapped":
        axes.fill_between(
            places,
            smoothed(curve.low),
            smoothed(curve.high),
            color=colour,
            alpha=0.15,
            linewidth=0,
        )


def smoothed(values: Sequence[float]) -> list[float]:
    """Centred means over :data:`SMOOTH` places, fewer at the ends."""
    half = SMOOTH // 2
    return [
        float(np.mean(values[max(place - half, 0) : place + half + 1]))
        for place in range(len(values))
    ]


def replacement_section(result: EvaluationResult) -> Section | None:
    """What exact parts in place of mapped ones would save."""
    parts = result.replacements
    if not parts:
        return None
    drawn = figure(10, 3.4)
    axes = drawn.subplots()
    plain(axes)
    gains = [each.nll_gain for each in parts]
    colours = [CHOSEN if each.low > 0 else "#C9C9C9" for each in gains]
    kinds = sum(not each.part.startswith("layer") for each in parts)
    places = [place + (0.6 if place >= kinds else 0.0) for place in range(len(parts))]
    axes.bar(places, [each.value for each in gains], color=colours, width=0.7)
    axes.errorbar(places, [e.value for e in gains], bars_of(gains), fmt="none", ecolor=INK,
                  capsize=2, linewidth=1)  # fmt: skip
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(places, [each.part.removeprefix("layer ") for each in parts])
    axes.set_xlabel("put right: all keys, all values, or one target layer (by its number)")
    axes.set_ylabel("nats/token saved")
    rows = [(e.part, interval(e.nll_gain, 4), interval(e.gap_gain)) for e in parts]
    return Section(
        "replacements",
        "Where the remaining error lies",
        "The target's exact keys, values or single layers put in place of the mapped ones, one "
        f"group at a time, on {gains[0].documents} {result.operating_point.reported_on} passages: "
        "how much the continuation's NLL falls. Lines are 95% intervals; vermilion bars have "
        "theirs above 0, grey ones cannot be told from nothing. Tall bars say which part of the "
        "mapper is worth more capacity; no tall bar at all means that little is left to gain.",
        drawn,
        Table(("exact part", "nats/token saved", "gap closed gained"), rows),
    )
