"""The page that compares all runs of a sweep."""

from collections.abc import Sequence
from pathlib import Path

from kvmap.evaluation.report.correlations import correlations_section
from kvmap.evaluation.report.origin import provenance_facts
from kvmap.evaluation.report.quality import candidates_section
from kvmap.evaluation.report.section import Fact, Page, Section, Table
from kvmap.evaluation.report.style import (
    CHOSEN,
    EDGE,
    TARGET,
    bars_of,
    family_colours,
    figure,
    plain,
)
from kvmap.evaluation.report.sweep import Entry, entries, evaluations_below
from kvmap.evaluation.report.words import interval
from kvmap.evaluation.result import EvaluationResult
from kvmap.provenance import Provenance

HEADER = ("front", "mapper", "export", "set", "gap closed", "look-ups right", "cold TTFT x",
          "cosine", "R² keys", "R² values", "weights")  # fmt: skip


def sweep_page(root: Path) -> Page:
    """Every mapper below a folder, with the Pareto front of quality against cold TTFT.

    Raises:
        KVMapError: There is nothing to compare, or a file is damaged.
    """
    found = entries(root)
    results = [EvaluationResult.read(folder) for folder in evaluations_below(root)]
    with_choice = [each for each in results if each.operating_point.candidates]
    largest = max(with_choice, key=lambda r: len(r.operating_point.candidates), default=None)
    sections = [_front(found), _table(found)]
    if largest is not None:
        point = largest.operating_point
        sections += [
            candidates_section(point.candidates, point.chosen_on, point.passages),
            correlations_section(point),
        ]
    unmeasured = [each for each in found if each.gap_closed is None]
    missing = []
    if unmeasured:
        missing.append(
            f"quality of {len(unmeasured)} of {len(found)} mappers: not evaluated; "
            f"kvmap-evaluate runs={root}"
        )
    if not any(each.front for each in found):
        missing.append("the front of quality against cold TTFT: no mapper has both measured")
    return Page(
        title=f"Mappers in {root}",
        summary=_summary(found),
        sections=[section for section in sections if section is not None],
        facts=[Fact("evaluations", ", ".join(map(str, evaluations_below(root))) or "none"),
               *provenance_facts(Provenance())],
        missing=missing,
    )  # fmt: skip


def comparison(found: Sequence[Entry]) -> Table:
    """The mappers, best first, those on the front marked."""
    return Table(HEADER, [_row(entry) for entry in found])


def _row(entry: Entry) -> tuple[str, ...]:
    metrics = entry.mapper.metrics
    names = ("val/attention_cosine", "val/r2_keys", "val/r2_values")
    weights = metrics.get("weights")
    return (
        "●" if entry.front else "",
        entry.name,
        entry.export,
        entry.measured_on or "-",
        interval(entry.gap_closed),
        interval(entry.lookups),
        interval(entry.cold_ttft),
        *("-" if (x := metrics.get(name)) is None else f"{x:.3f}" for name in names),
        "-" if weights is None else f"{weights:,.0f}",
    )


def _table(found: Sequence[Entry]) -> Section:
    return Section(
        "mappers",
        "All mappers",
        "Best gap closed on top; a dot marks the front: no other mapper is as good and as fast, "
        "and better in one of the two. “Set” says where quality was measured; mappers without a "
        "set were not evaluated. Cold TTFT x is how many times sooner than from the target alone "
        "the first token comes. Cosine and R² are the training run's diagnostics.",
        table=comparison(found),
    )


def _front(found: Sequence[Entry]) -> Section | None:
    shown = [e for e in found if e.gap_closed is not None and e.cold_ttft is not None]
    if not shown:
        return None
    colours = family_colours([each.mapper.family for each in shown])
    drawn = figure(9, 4.6)
    axes = drawn.subplots()
    plain(axes, "both")
    for entry in shown:
        assert entry.gap_closed is not None
        assert entry.cold_ttft is not None
        below = entry.gap_closed.value < EDGE
        axes.errorbar(
            [entry.cold_ttft.value],
            [max(entry.gap_closed.value, EDGE)],
            xerr=bars_of([entry.cold_ttft]),
            yerr=None if below else bars_of([entry.gap_closed]),
            color=colours[entry.mapper.family],
            marker="v" if below else "o",
            markersize=8 if entry.front else 4,
            alpha=1.0 if entry.front else 0.5,
            linewidth=0.8,
        )
    front = sorted(
        (e.cold_ttft.value, max(e.gap_closed.value, EDGE))
        for e in shown
        if e.front and e.cold_ttft and e.gap_closed
    )
    axes.plot(*zip(*front, strict=True), color=CHOSEN, linewidth=1.2, zorder=0)
    axes.plot([1], [1], marker="*", markersize=13, color=TARGET, linestyle="")
    axes.annotate("target alone", (1, 1), xytext=(6, 6), textcoords="offset points", color=TARGET)
    for family, colour in colours.items():
        axes.plot([], [], marker="o", linestyle="", color=colour, label=family)
    axes.legend(frameon=False, loc="lower left")
    axes.set(xlabel="cold TTFT, times sooner than the target alone", ylabel="gap closed")
    sets = sorted({each.measured_on for each in shown})
    lengths = sorted({each.prompt for each in shown})
    return Section(
        "front",
        "Quality against time to first token",
        f"Each point is a mapper: the share of the distance from source to target that it closes "
        f"({' and '.join(sets)} set) against how many times sooner than from the target alone the "
        f"first token comes (prompts of {' and '.join(map(str, lengths))} tokens, cold; bars are "
        "95% intervals). Up and right is better; large points on the line are beaten by no other "
        "mapper in both. Triangles lie below the figure.",
        drawn,
    )


def _summary(found: Sequence[Entry]) -> list[str]:
    measured = [each for each in found if each.gap_closed is not None]
    said = [f"{len(found)} mappers, {len(measured)} of them evaluated."]
    if measured:
        best = measured[0]
        said.append(
            f"Best: {best.name} ({best.export}) closes {interval(best.gap_closed)} of the gap on "
            f"the {best.measured_on} set."
        )
    front = [each.name for each in found if each.front]
    if front:
        said.append(f"On the front of quality against cold TTFT: {'; '.join(front)}.")
    return said
