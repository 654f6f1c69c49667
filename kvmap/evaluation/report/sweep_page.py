"""The page that compares all runs of a sweep."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from kvmap.evaluation.report.correlations import LEAST, correlations_section
from kvmap.evaluation.report.families import candidates_section
from kvmap.evaluation.report.numbers import entry_numbers
from kvmap.evaluation.report.origin import provenance_facts, text_name
from kvmap.evaluation.report.section import Fact, Page, Section, Table
from kvmap.evaluation.report.style import (
    EDGE,
    INK,
    SOURCE,
    TARGET,
    bars_of,
    family_colour,
    family_legend,
    family_marker,
    figure,
    plain,
    say,
)
from kvmap.evaluation.report.sweep import Comparison, Entry, compare, evaluations_below
from kvmap.evaluation.report.words import interval, times
from kvmap.evaluation.result import EvaluationResult
from kvmap.evaluation.statistics import Estimate
from kvmap.provenance import Provenance

HEADER = ("front", "mapper", "export", "set", "measured on", "gap closed", "context used",
          "look-ups right", "disagreement", "cold TTFT x", "cosine", "R² keys", "R² values",
          "weights")  # fmt: skip
SHORT = ("front", "mapper", "export", "gap closed", "look-ups right", "cold TTFT x")
FEW = 12
"""Mappers up to which those off the front are drawn strongly."""
NAMED = 8
"""Most mappers that are named where many could be."""


def sweep_page(root: Path) -> Page:
    """Every mapper below a folder, with the Pareto front of quality against cold TTFT.

    Raises:
        KVMapError: There is nothing to compare, or a file is damaged.
    """
    found = compare(root)
    entries = [entry for each in found for entry in each.entries]
    results = [EvaluationResult.read(folder) for folder in evaluations_below(root)]
    with_choice = [each for each in results if each.operating_point.candidates]
    largest = max(with_choice, key=lambda r: len(r.operating_point.candidates), default=None)
    sections = [front_section(each, number) for number, each in enumerate(found)]
    sections.append(_table(entries))
    correlated = None
    if largest is not None:
        point = largest.operating_point
        correlated = correlations_section(point)
        sections += [
            candidates_section(point.candidates, point.chosen_on, point.passages),
            correlated,
        ]
    return Page(
        title=f"Mappers in {root}",
        summary=_summary(found),
        sections=[section for section in sections if section is not None],
        facts=[Fact("evaluations", ", ".join(map(str, evaluations_below(root))) or "none"),
               *_texts(results),
               *provenance_facts(Provenance())],
        missing=_missing(found, root, correlated is None),
        numbers=[number for each in entries for number in entry_numbers(each)],
    )  # fmt: skip


def short_table(found: Table) -> Table:
    """The columns of the mappers' table that fit a terminal."""
    columns = [list(found.header).index(name) for name in SHORT]
    return Table(SHORT, [[row[column] for column in columns] for row in found.rows])


def _texts(results: Sequence[EvaluationResult]) -> list[Fact]:
    texts = {
        f"{text_name(each.data.corpus)}; test {each.data.test}, "
        f"development {each.data.development or 'not read'}"
        for each in results
    }
    return [Fact("text", text) for text in sorted(texts)]


def _missing(found: Sequence[Comparison], root: Path, uncorrelated: bool) -> list[str]:
    said = []
    entries = [entry for each in found for entry in each.entries]
    unmeasured = [each for each in entries if not each.measured_on]
    if unmeasured:
        said.append(
            f"quality of {len(unmeasured)} of {len(entries)} mappers: not evaluated; "
            f"kvmap-evaluate runs={root}"
        )
    for each in found:
        on = f" ({each.text})" if each.text and len(found) > 1 else ""
        if each.text and not each.measured:
            said.append(f"the front of quality against cold TTFT{on}: no mapper has both measured")
        elif each.text and each.source is None:
            said.append(f"the source alone beside the front{on}: no benchmark.json has its speed")
    if uncorrelated:
        said.append(f"diagnostics against quality: fewer than {LEAST} mappers were compared")
    return said


def _row(entry: Entry) -> tuple[str, ...]:
    metrics = entry.mapper.metrics
    names = ("val/attention_cosine", "val/r2_keys", "val/r2_values")
    weights = metrics.get("weights")
    return (
        "●" if entry.front else "",
        entry.name,
        entry.export,
        entry.measured_on or "-",
        entry.text or "-",
        interval(entry.gap_closed),
        interval(entry.context_used),
        interval(entry.lookups),
        entry.disagreement or "-",
        interval(entry.cold_ttft),
        *("-" if (x := metrics.get(name)) is None else f"{x:.3f}" for name in names),
        "-" if weights is None else f"{weights:,.0f}",
    )


def _table(found: Sequence[Entry]) -> Section:
    return Section(
        "mappers",
        "All mappers",
        "By text, best quality on top; a dot marks the front: no other mapper of the same text, "
        "and neither model alone, is as good and as fast, and better in one. “Set” says where "
        "quality was measured; mappers without a set were not evaluated. Disagreement names "
        "mappers that do well on likelihood and fail the look-ups, or the reverse. Cold TTFT x is "
        "how many times sooner "
        "than from the target alone the first token comes. Cosine and R² are the training run's "
        "diagnostics. Brackets are 95% intervals.",
        table=Table(HEADER, [_row(entry) for entry in found]),
    )


def front_section(found: Comparison, number: int = 0) -> Section | None:
    """Quality against cold TTFT, the front as a line, both models alone beside it.

    Args:
        found: Mappers that can be compared.
        number: Of the comparison on its page.
    """
    shown = found.measured
    if not shown:
        return None
    drawn = figure(10, 5.2)
    axes = drawn.subplots()
    plain(axes, "both")
    for entry in sorted(shown, key=lambda each: each.front):
        _point(axes, entry, found, 0.75 if len(shown) <= FEW else 0.35)
    front = sorted(
        (e for e in shown if e.front),
        key=lambda each: each.cold_ttft.value if each.cold_ttft else 0,
    )
    places = [_seen(entry, found) for entry in front]
    ends = [(1.0, 1.0), *places]
    if found.source is not None:
        ends.append((found.source.ttft, found.source.quality))
    axes.step(*zip(*ends, strict=True), color=INK, linewidth=1, linestyle="--", zorder=1,
              where="pre")  # fmt: skip
    _alone(axes, "target alone", (1.0, 1.0), TARGET)
    if found.source is not None:
        _alone(axes, "source alone", (found.source.ttft, found.source.quality), SOURCE)
    for rank, place in enumerate(places, 1):
        say(axes, str(rank), place, INK, xytext=(6, 6), fontsize=10, fontweight="bold")
    named = [
        Line2D([], [], linestyle="", label=f"{rank}  {entry.name}")
        for rank, entry in enumerate(front, 1)
    ]
    if named:
        drawn.legend(handles=named, frameon=False, fontsize=8, ncols=2, handlelength=0,
                     loc="outside lower center")  # fmt: skip
    family_legend(axes, [each.mapper.family for each in shown], "lower right")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.1, y=0.12)
    axes.set(xlabel="cold TTFT: times sooner than from the target alone", ylabel=found.measure)
    sets = sorted({each.measured_on for each in shown})
    lengths = sorted({each.prompt for each in shown})
    zero = (
        "the source alone is at 0 and the target alone at 1"
        if found.measure == "gap closed"
        else "a window of the last tokens is at 0 and the target alone at 1, since source and "
        "target are too close for a share of their gap"
    )
    return Section(
        f"front_{number + 1}" if number else "front",
        "Quality against time to first token" + (f", {found.text}" if number else ""),
        f"Each point is one of {len(shown)} mappers: {found.measure} in likelihood "
        f"({' and '.join(sets)} set, {found.text}; {zero}) against how many times sooner than from "
        "the target alone the first token comes (prompts of "
        f"{' and '.join(map(str, lengths))} tokens, cold: "
        "the source's reading included). Crosses are 95% intervals. Up and right is better. Large, "
        "numbered points on the dashed line are the front: no other mapper, and neither model "
        "alone, is as good and as fast, and better in one; choose among them. Stars are the models "
        "alone. Triangles lie below the figure. Points whose crosses overlap cannot be told apart.",
        drawn,
    )


def _seen(entry: Entry, found: Comparison) -> tuple[float, float]:
    """Where a point is drawn."""
    quality, ttft = _known(entry, found)
    return ttft.value, max(quality.value, EDGE)


def _known(entry: Entry, found: Comparison) -> tuple[Estimate, Estimate]:
    quality = entry.quality(found.measure)
    if quality is None or entry.cold_ttft is None:
        raise ValueError(f"{entry.export} was not measured")
    return quality, entry.cold_ttft


def _point(axes: Axes, entry: Entry, found: Comparison, alpha: float) -> None:
    quality, ttft = _known(entry, found)
    below = quality.value < EDGE
    family = entry.mapper.family
    x, y = _seen(entry, found)
    low = max(quality.low, EDGE)
    axes.errorbar(
        [x],
        [y],
        xerr=bars_of([ttft]),
        yerr=None if below else [[y - low], [max(quality.high - y, 0)]],
        color=family_colour(family),
        marker="v" if below else family_marker(family),
        markersize=9 if entry.front else 5,
        alpha=1.0 if entry.front else alpha,
        linewidth=1.0 if entry.front else 0.6,
        markeredgecolor="white",
        markeredgewidth=0.6,
    )


def _alone(axes: Axes, name: str, place: tuple[float, float], colour: str) -> None:
    axes.plot(*place, marker="*", markersize=15, color=colour, linestyle="", zorder=4)
    say(axes, name, place, colour, xytext=(8, 7))


def _summary(found: Sequence[Comparison]) -> list[str]:
    entries = [entry for each in found for entry in each.entries]
    evaluated = [each for each in found if each.text]
    known = sum(len(each.entries) for each in evaluated)
    said = [f"{len(entries)} mappers, {known} of them evaluated."]
    if len(evaluated) > 1:
        said.append(
            f"They were measured on {len(evaluated)} texts or pairs; only mappers of one text are "
            "compared with each other."
        )
    for each in evaluated:
        where = f"On {each.text}: " if len(evaluated) > 1 else ""
        said += [f"{where}{line}" for line in _told(each)]
    return said


def _told(found: Comparison) -> list[str]:
    """The best, the front, and who is good in one thing only."""
    best = found.entries[0]
    said = [
        f"Best: {best.name} ({best.export}), {found.measure} "
        f"{interval(best.quality(found.measure))} on the {best.measured_on} set."
    ]
    front = [
        f"{each.name} ({times(each.cold_ttft)}, {interval(each.quality(found.measure))})"
        for each in found.entries
        if each.front and each.cold_ttft
    ]
    if front:
        said.append(
            f"On the front of quality against cold TTFT (times sooner, {found.measure}): "
            f"{'; '.join(front)}."
        )
    elif found.measured:
        said.append("No mapper is on the front: a model alone is as good and as fast.")
    for what in sorted({each.disagreement for each in found.entries} - {""}):
        named = [each.name for each in found.entries if each.disagreement == what]
        more = f" and {len(named) - NAMED} more, see the table" if len(named) > NAMED else ""
        said.append(f"{what.capitalize()}: {'; '.join(named[:NAMED])}{more}.")
    return said
