"""Figure of how well each diagnostic foretells quality."""

import numpy as np

from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import EDGE, family_colours, figure, plain
from kvmap.evaluation.report.training import TITLES
from kvmap.evaluation.report.words import interval
from kvmap.evaluation.result import OperatingPoint

LEAST = 8
"""Mappers below which a rank correlation is an accident."""


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
    colours = family_colours([each.mapper.family for each in shown])
    drawn = figure(2.4 * len(names), 3.4)
    panels = drawn.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        plain(axes, "both")
        numbers = [each.mapper.metrics.get(f"val/{name}") for each in shown]
        known = [x for x in numbers if x is not None]
        low, high = np.percentile(known, [10, 100]) if known else (0.0, 1.0)
        low -= (high - low) * 0.3
        for number, each in zip(numbers, shown, strict=True):
            if number is None or each.gap_closed is None:
                continue
            inside = number >= low and each.gap_closed.value >= EDGE
            axes.plot(max(number, low), max(each.gap_closed.value, EDGE),
                      marker="o" if inside else "<", markersize=4, alpha=0.8,
                      color=colours[each.mapper.family], linestyle="")  # fmt: skip
        spearman = found[name].spearman
        axes.set_title(
            f"rho = {spearman.value:.2f}" if spearman else "rho not defined", fontsize=10
        )
        axes.set_xlabel(TITLES[name], fontsize=9)
    panels[0].set_ylabel("gap closed")
    for family, colour in colours.items():
        panels[-1].plot([], [], marker="o", linestyle="", color=colour, label=family)
    panels[-1].legend(frameon=False, fontsize=8, loc="best")
    rows = [
        (TITLES[name], str(found[name].mappers), interval(found[name].spearman)) for name in names
    ]
    best = max(names, key=lambda name: abs(s.value) if (s := found[name].spearman) else 0.0)
    return Section(
        "correlations",
        "Which diagnostic foretells quality",
        f"Each point is one of {len(shown)} mappers on the {point.chosen_on} set: a diagnostic of "
        "its cache, cheap to compute, against the share of the gap that it closes in use. rho is "
        "Spearman's rank correlation; 1 or -1 would mean that the diagnostic alone could choose. "
        f"Here {TITLES[best]} tells most. Points beyond an axis are drawn at its edge.",
        drawn,
        Table(("diagnostic", "mappers", "rho with gap closed"), rows),
    )
