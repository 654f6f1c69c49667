"""Figure of how well each diagnostic foretells quality."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import (
    EDGE,
    SOURCE,
    TARGET,
    family_colour,
    family_legend,
    family_marker,
    figure,
    plain,
    say,
)
from kvmap.evaluation.report.training import TITLES
from kvmap.evaluation.report.words import interval
from kvmap.evaluation.result import Candidate, DiagnosticCorrelation, OperatingPoint

LEAST = 8
"""Mappers below which a rank correlation is an accident."""
UNTIL = 0.1
"""Share of the mappers, the lowest in a diagnostic, that may lie beyond a panel's edge."""


def correlations_section(point: OperatingPoint) -> Section | None:
    """Each diagnostic against gap closed, one point a mapper."""
    found = {
        each.diagnostic.removeprefix("val/"): each
        for each in point.correlations
        if each.quality == "gap_closed" and each.mappers >= LEAST
    }
    names = [name for name in TITLES if name in found]
    if not names:
        return None
    most = max(candidate.repair for candidate in point.candidates)
    shown = [c for c in point.candidates if c.gap_closed is not None and c.repair == most]
    drawn = figure(2.5 * len(names), 3.6)
    panels = drawn.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        _scatter(axes, shown, name)
        spearman = found[name].spearman
        told = f"rho = {interval(spearman)}" if spearman else "rho not defined"
        axes.set_title(told, fontsize=10)
        axes.set_xlabel(TITLES[name], fontsize=9)
    panels[0].set_ylabel("gap closed")
    for level, role, colour in ((0, "source", SOURCE), (1, "target", TARGET)):
        say(panels[0], role, (0, level), colour, xycoords=("axes fraction", "data"), fontsize=8)
    family_legend(panels[0], [each.mapper.family for each in shown], "center left")
    by_rank = sorted(names, key=lambda name: -_strength(found[name]))
    rows = [
        (TITLES[name], str(found[name].mappers), interval(found[name].spearman)) for name in by_rank
    ]
    return Section(
        "correlations",
        "Which diagnostic foretells quality",
        f"Each point is one of {len(shown)} mappers on {point.passages} documents of the "
        f"{point.chosen_on} set, repair {most}: a diagnostic of its cache, cheap to compute, "
        "against the share of the gap that it closes in use. rho is Spearman's rank correlation "
        "with its 95% interval over mappers; 1 or -1 would mean that the diagnostic alone could "
        "choose, "
        f"0 that it says nothing. {_ranking(found, by_rank)} Triangles lie beyond an edge.",
        drawn,
        Table(("diagnostic", "mappers", "rho with gap closed"), rows),
    )


def _ranking(found: dict[str, DiagnosticCorrelation], by_rank: Sequence[str]) -> str:
    """Which tells most, and which others cannot be told from it."""
    best = found[by_rank[0]].spearman
    if best is None:
        return "None of them is defined here."
    near = [
        TITLES[name]
        for name in by_rank[1:]
        if (rho := found[name].spearman)
        and max(abs(rho.low), abs(rho.high)) >= min(abs(best.low), abs(best.high))
    ]
    said = f"Here the {TITLES[by_rank[0]]} tells most"
    if near:
        said += f", though its interval overlaps with that of the {' and the '.join(near)}"
    return f"{said}."


def _strength(correlation: DiagnosticCorrelation) -> float:
    return abs(correlation.spearman.value) if correlation.spearman else 0.0


def _scatter(axes: Axes, shown: Sequence[Candidate], name: str) -> None:
    plain(axes, "both")
    numbers = [each.mapper.metrics.get(f"val/{name}") for each in shown]
    known = [x for x in numbers if x is not None]
    low, high = np.percentile(known, [100 * UNTIL, 100]) if known else (0.0, 1.0)
    low -= (high - low) * 0.3
    for number, each in zip(numbers, shown, strict=True):
        if number is None or each.gap_closed is None:
            continue
        inside = number >= low and each.gap_closed.value >= EDGE
        below = "<" if number < low else "v"
        axes.plot(
            [max(number, low)],
            [max(each.gap_closed.value, EDGE)],
            marker=family_marker(each.mapper.family) if inside else below,
            markersize=5,
            alpha=0.8,
            color=family_colour(each.mapper.family),
            markeredgecolor="white",
            markeredgewidth=0.4,
            linestyle="",
        )
    for level, colour in ((0, SOURCE), (1, TARGET)):
        axes.axhline(level, color=colour, linewidth=1, zorder=1)
