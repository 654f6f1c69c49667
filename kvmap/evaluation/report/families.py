"""Figure of mappers side by side: what they close of the gap, and what they look up."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvmap.evaluation.arms import NATIVE, Role
from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import (
    CONTROL,
    EDGE,
    SOURCE,
    TARGET,
    colour_of,
    family_colour,
    figure,
    plain,
    say,
)
from kvmap.evaluation.report.sweep import disagreement_of
from kvmap.evaluation.report.words import interval, mapper_names
from kvmap.evaluation.result import ArmResult, Candidate, EvaluationResult
from kvmap.evaluation.statistics import Estimate

BETWEEN: tuple[Role, ...] = ("depth_nearest", "mapped", "exact")
CHANCE = 0.25


def families_section(result: EvaluationResult) -> Section | None:
    """Gap closed and look-ups of every candidate, or of the arms of one mapper."""
    point = result.operating_point
    if point.candidates:
        return candidates_section(point.candidates, point.chosen_on, point.passages)
    arms = [arm for role in BETWEEN if (arm := result.find(role))]
    if len(arms) < 2:
        return None
    drawn = figure(9, 1.2 + 0.42 * len(arms))
    names = [_arm_name(arm) for arm in arms]
    gaps = [arm.continuation.gap_closed if arm.continuation else None for arm in arms]
    looks = [arm.lookups.accuracy if arm.lookups else None for arm in arms]
    _dots(drawn, names, gaps, looks, [colour_of(arm.arm.role) for arm in arms])
    for role in NATIVE:
        alone = result.find(role)
        if alone is not None and alone.lookups is not None:
            level = alone.lookups.accuracy.value
            drawn.axes[1].axvline(level, color=colour_of(role), linewidth=1.2, zorder=1)
            _above(drawn.axes[1], role, level, colour_of(role))
    rows = [(n, interval(g), interval(k)) for n, g, k in zip(names, gaps, looks, strict=True)]
    return Section(
        "families",
        "Gap closed and look-ups by family",
        f"The evaluated mapper between the copy that learns nothing (depth_nearest) and the "
        f"target's own cache through the same path (exact), on the {point.reported_on} set; bars "
        "are 95% intervals. Further right is better: 0 is the source alone, 1 the target alone, "
        "left of 0 is worse than the source alone; look-ups have both models alone as lines too, "
        "and guessing dotted. Triangles lie "
        "beyond the edge. Evaluate a whole sweep (runs=) to see its mappers side by side.",
        drawn,
        Table(("family", "gap closed", "look-ups right"), rows),
    )


def _arm_name(arm: ArmResult) -> str:
    return arm.name if not arm.family or arm.family == arm.arm.role else f"{arm.family}, {arm.name}"


def candidates_section(candidates: Sequence[Candidate], chosen_on: str, passages: int) -> Section:
    """Every export of a sweep, best on top."""
    ordered = sorted(candidates, key=lambda each: each.score)
    names = [
        f"{name}, r={each.repair}" + (" ◂ chosen" if each.chosen else "")
        for name, each in zip(candidate_names(ordered), ordered, strict=True)
    ]
    drawn = figure(10, 1.1 + 0.24 * max(len(ordered), 4))
    gaps = [each.gap_closed for each in ordered]
    looks = [each.lookups for each in ordered]
    _dots(drawn, names, gaps, looks, [family_colour(each.mapper.family) for each in ordered])
    rows = [
        (
            name,
            each.mapper.export,
            interval(each.gap_closed),
            interval(each.context_used),
            interval(each.lookups),
            f"{each.score:.3f}",
            disagreement_of(each) or "-",
            f"{each.cold_ttft.ms:.0f} ms ({each.cold_ttft.times.value:.2f}x)"
            if each.cold_ttft
            else "-",
        )
        for name, each in reversed(list(zip(names, ordered, strict=True)))
    ]
    header = ("mapper", "export", "gap closed", "context used", "look-ups right", "score",
              "disagreement", "cold TTFT")  # fmt: skip
    return Section(
        "families",
        "Gap closed and look-ups by family",
        f"Every export of the sweep on {passages} documents of the {chosen_on} set, from which the "
        "operating point was chosen; r is the number of repaired tokens, one colour a family, bars "
        "are 95% intervals over documents, best on top. Further right is better. Left: 0 is the "
        "source alone, 1 the target alone; what is left of 0 is worse than the source alone, "
        "triangles lie beyond the edge. Right: four-way questions, the dotted line is guessing. "
        "The score is the lesser of gap closed and look-ups (guessing taken off): a mapper has to "
        "do well on both, and the table names those that do well on only one.",
        drawn,
        Table(header, rows),
    )


def candidate_names(candidates: Sequence[Candidate]) -> list[str]:
    """Names of the candidates' mappers; the repairs of one mapper share its name."""
    mappers = {each.mapper.export: each.mapper for each in candidates}
    names = dict(zip(mappers, mapper_names(list(mappers.values())), strict=True))
    return [names[each.mapper.export] for each in candidates]


def _dots(
    drawn: Figure,
    names: Sequence[str],
    gaps: Sequence[Estimate | None],
    looks: Sequence[Estimate | None],
    colours: Sequence[str],
) -> None:
    left, right = drawn.subplots(1, 2, sharey=True)
    places = range(len(names))
    for axes, found, label in ((left, gaps, "gap closed"), (right, looks, "look-ups right")):
        plain(axes, "x")
        axes.set(xlabel=label, yticks=list(places), ylim=(-0.7, len(names) - 0.3))
        axes.set_yticklabels(names, fontsize=8)
        axes.spines["left"].set_visible(False)
        for place, estimate, colour in zip(places, found, colours, strict=True):
            if estimate is None:
                continue
            inside = estimate.value >= EDGE
            if inside:
                axes.plot([max(estimate.low, EDGE), estimate.high], [place] * 2, color=colour)
            axes.plot(
                [max(estimate.value, EDGE)],
                [place],
                marker="o" if inside else "<",
                markersize=5,
                color=colour,
                clip_on=False,
            )
    for x, name, colour in ((0, "source", SOURCE), (1, "target", TARGET)):
        left.axvline(x, color=colour, linewidth=1.2, zorder=1)
        _above(left, name, x, colour)
    low = min((each.low for each in gaps if each), default=0.0)
    left.set_xlim(max(min(low, 0.0), EDGE) - 0.08, 1.12)
    right.axvline(CHANCE, color=CONTROL, linestyle=":", linewidth=1.2, zorder=1)
    _above(right, "guessing", CHANCE, CONTROL)
    right.set_xlim(0, 1.02)


def _above(axes: Axes, text: str, x: float, colour: str) -> None:
    say(
        axes,
        text,
        (x, 1),
        colour,
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        ha="center",
        fontsize=8,
    )
