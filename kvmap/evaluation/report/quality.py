"""Figures of quality: repair, families, agreement by position, what exact parts would save."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvmap.evaluation.arms import Role
from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import (
    CHOSEN,
    CONTROL,
    EDGE,
    MAPPED,
    SOURCE,
    TARGET,
    bars_of,
    colour_of,
    family_colours,
    figure,
    plain,
)
from kvmap.evaluation.report.words import interval, mapper_name, right
from kvmap.evaluation.result import ArmResult, Candidate, EvaluationResult
from kvmap.evaluation.statistics import Curve, Estimate

BOUNDS: tuple[tuple[Role, str], ...] = (("source", SOURCE), ("target", TARGET))
BETWEEN: tuple[Role, ...] = ("depth_nearest", "mapped", "exact")
ALONG: tuple[Role, ...] = ("source", "window", "mapped", "exact")


def repair_section(result: EvaluationResult) -> Section | None:
    """Quality against the number of repaired tokens."""
    arms = {arm.name: arm for arm in result.arms}
    curve = [arms[name] for name in result.curve if name in arms]
    if len(curve) < 2:
        return None
    drawn = figure(9, 3.6)
    left, middle = drawn.subplots(1, 2)
    repairs = [max(arm.arm.repair, 1) for arm in curve]
    gaps = [arm.continuation.gap_closed if arm.continuation else None for arm in curve]
    _curve(left, repairs, gaps, "gap closed")
    _curve(middle, repairs, [a.lookups.accuracy if a.lookups else None for a in curve],
           "look-ups right")  # fmt: skip
    middle.axhline(0.25, color=CONTROL, linestyle=":", linewidth=1)
    middle.annotate("guessing", (repairs[-1], 0.25), ha="right", va="bottom", color=CONTROL)
    for axes, task in ((left, "continuation"), (middle, "lookups")):
        for role, colour in BOUNDS:
            level = _level(result.find(role), task)
            if level is not None:
                axes.axhline(level, color=colour, linewidth=1.2)
                axes.annotate(role, (repairs[0], level), color=colour, va="bottom", fontsize=9)
    rows = [
        (
            str(arm.arm.repair),
            f"{arm.repaired_share:.1%}",
            interval(arm.continuation.gap_closed) if arm.continuation else "-",
            right(arm.lookups),
        )
        for arm in curve
    ]
    return Section(
        "repair",
        "Repair: how many last tokens the target reads itself",
        "Quality of the mapped cache against the number of last prompt tokens that the target "
        f"recomputes ({result.operating_point.reported_on} set; bars are 95% intervals; with 0 "
        "asked the last token is still read, since there are no first logits without it). Left, "
        "the share of the distance from source to target that is closed in continuation NLL; "
        "right, the share of look-ups right. A flat curve means that the mapped cache itself is "
        "good; a rising one that the repaired tokens do the work.",
        drawn,
        Table(("repaired tokens", "share of the prompt", "gap closed", "look-ups right"), rows),
    )


def _curve(
    axes: Axes, repairs: Sequence[int], estimates: Sequence[Estimate | None], label: str
) -> None:
    known = [(x, y) for x, y in zip(repairs, estimates, strict=True) if y is not None]
    plain(axes)
    axes.set(xlabel="repaired tokens", ylabel=label)
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(repairs, [str(each) for each in repairs])
    axes.minorticks_off()
    if known:
        xs, ys = zip(*known, strict=True)
        axes.errorbar(xs, [y.value for y in ys], bars_of(ys), color=MAPPED, marker="o", capsize=3)


def _level(arm: ArmResult | None, task: str) -> float | None:
    if arm is None:
        return None
    if task == "continuation":
        return 0.0 if arm.arm.role == "source" else 1.0
    return arm.lookups.accuracy.value if arm.lookups else None


def families_section(result: EvaluationResult) -> Section | None:
    """Gap closed and look-ups of every candidate, or of the arms of one mapper."""
    point = result.operating_point
    if point.candidates:
        return candidates_section(point.candidates, point.chosen_on, point.passages)
    arms = [arm for role in BETWEEN if (arm := result.find(role))]
    if len(arms) < 2:
        return None
    drawn = figure(9, 1.2 + 0.4 * len(arms))
    names = [arm.family or arm.name for arm in arms]
    gaps = [arm.continuation.gap_closed if arm.continuation else None for arm in arms]
    looks = [arm.lookups.accuracy if arm.lookups else None for arm in arms]
    colours = [colour_of(arm.arm.role) for arm in arms]
    _dots(drawn, names, gaps, looks, colours)
    rows = [(n, interval(g), interval(k)) for n, g, k in zip(names, gaps, looks, strict=True)]
    return Section(
        "families",
        "Gap closed and look-ups by family",
        f"The evaluated mapper between the copy that learns nothing (depth_nearest) and the "
        f"target's own cache through the same path (exact), on the {point.reported_on} set; bars "
        "are 95% intervals. Left of 0 is worse than the source alone. Evaluate a whole sweep "
        "(runs=) to see its mappers side by side.",
        drawn,
        Table(("family", "gap closed", "look-ups right"), rows),
    )


def candidates_section(candidates: Sequence[Candidate], chosen_on: str, passages: int) -> Section:
    """Every export of a sweep, best below."""
    ordered = sorted(candidates, key=lambda each: each.score)
    names = [mapper_name(each.mapper) for each in ordered]
    names = [
        f"{n}, r={c.repair}" + (" ◂ chosen" if c.chosen else "")
        for n, c in zip(names, ordered, strict=True)
    ]
    by_family = family_colours([each.mapper.family for each in ordered])
    drawn = figure(10, 1.3 + 0.24 * len(ordered))
    gaps = [each.gap_closed for each in ordered]
    looks = [each.lookups for each in ordered]
    _dots(drawn, names, gaps, looks, [by_family[each.mapper.family] for each in ordered])
    rows = [
        (
            name,
            each.mapper.export,
            interval(each.gap_closed),
            interval(each.lookups),
            f"{each.score:.3f}",
            f"{each.cold_ttft.ms:.0f} ms ({each.cold_ttft.times.value:.2f}x)"
            if each.cold_ttft
            else "-",
        )
        for name, each in reversed(list(zip(names, ordered, strict=True)))
    ]
    return Section(
        "families",
        "Gap closed and look-ups by family",
        f"Every export of the sweep on {passages} documents of the {chosen_on} set, from which the "
        "operating point was chosen; one colour a family, bars are 95% intervals, best on top. The "
        "score is the lesser of gap closed and look-ups (guessing taken off): a mapper has to do "
        "well on both. Points left of the axis are drawn at its edge.",
        drawn,
        Table(("mapper", "export", "gap closed", "look-ups right", "score", "cold TTFT"), rows),
    )


def _dots(
    drawn: Figure,
    names: Sequence[str],
    gaps: Sequence[Estimate | None],
    looks: Sequence[Estimate | None],
    colours: Sequence[str],
) -> None:
    left, right_ = drawn.subplots(1, 2, sharey=True)
    places = range(len(names))
    for axes, found, label in ((left, gaps, "gap closed"), (right_, looks, "look-ups right")):
        plain(axes, "x")
        axes.set(xlabel=label, yticks=list(places))
        axes.set_yticklabels(names, fontsize=8)
        for place, estimate, colour in zip(places, found, colours, strict=True):
            if estimate is None:
                continue
            inside = estimate.value >= EDGE
            if inside:
                axes.plot([max(estimate.low, EDGE), estimate.high], [place] * 2, color=colour)
            value = max(estimate.value, EDGE)
            axes.plot([value], [place], marker="o" if inside else "<", color=colour)
    left.axvline(0, color=SOURCE, linewidth=1)
    left.axvline(1, color=TARGET, linewidth=1)
    left.set_xlim(left=max(left.get_xlim()[0], EDGE - 0.05))
    right_.axvline(0.25, color=CONTROL, linestyle=":", linewidth=1)


def position_section(result: EvaluationResult) -> Section | None:
    """Agreement with the target by position after the prompt."""
    arms = [arm for role in ALONG if (arm := result.find(role)) and arm.continuation]
    if not arms:
        return None
    drawn = figure(9, 3.6)
    left, right_ = drawn.subplots(1, 2)
    rows = []
    shared = 0
    for arm in arms:
        text = arm.continuation
        assert text is not None
        shared = text.passages
        colour = CHOSEN if arm.arm.role == "window" else colour_of(arm.arm.role)
        _band(left, text.same_top_by_position, colour, arm.name)
        _band(right_, text.kl_by_position, colour, arm.name)
        rows.append((arm.name, interval(text.same_top), interval(text.kl, 3)))
    left.set(xlabel="position after the prompt", ylabel="same likeliest token as the target")
    right_.set(xlabel="position after the prompt", ylabel="KL(target ‖ arm), nats")
    right_.set_yscale("symlog", linthresh=0.01)
    left.legend(frameon=False, fontsize=8, loc="lower left")
    for axes in (left, right_):
        plain(axes)
    return Section(
        "positions",
        "Agreement with the target, token by token",
        f"How often an arm finds the same next token likeliest as the target does (left, higher is "
        f"better) and how far its distribution is from the target's (right, lower is better), by "
        f"position along the text's own continuation; means over {shared} "
        f"{result.operating_point.reported_on} passages, bands are 95% intervals. A rise of the "
        "distance with the position would mean that errors of the cache build up.",
        drawn,
        Table(("arm", "same likeliest token", "KL, nats"), rows),
    )


def _band(axes: Axes, curve: Curve, colour: str, label: str) -> None:
    places = range(1, len(curve.values) + 1)
    axes.plot(places, curve.values, color=colour, linewidth=1.4, label=label)
    axes.fill_between(places, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)


def replacement_section(result: EvaluationResult) -> Section | None:
    """What exact parts in place of mapped ones would save."""
    if not result.replacements:
        return None
    parts = result.replacements
    drawn = figure(9, 3.2)
    axes = drawn.subplots()
    plain(axes)
    gains = [each.nll_gain for each in parts]
    colours = [CHOSEN if each.low > 0 else CONTROL for each in gains]
    axes.bar(range(len(parts)), [each.value for each in gains], color=colours, width=0.7)
    axes.errorbar(
        range(len(parts)), [e.value for e in gains], bars_of(gains), fmt="none", ecolor="#444444"
    )
    axes.set_xticks(range(len(parts)), [e.part for e in parts], rotation=45, ha="right")
    axes.set_ylabel("nats/token saved")
    rows = [(e.part, interval(e.nll_gain, 4), interval(e.gap_gain)) for e in parts]
    return Section(
        "replacements",
        "Where the remaining error lies",
        "The target's exact keys, values or single layers put in place of the mapped ones, one "
        f"group at a time, on {gains[0].documents} {result.operating_point.reported_on} passages: "
        "how much the NLL falls. Coloured bars have 95% intervals above 0. Tall bars say which "
        "part of the mapper is worth more capacity.",
        drawn,
        Table(("exact part", "nats/token saved", "gap closed gained"), rows),
    )
