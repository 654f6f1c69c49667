"""What a report is made of. Renderers know these and nothing of evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """Numbers as text.

    Attributes:
        header: One word a column.
        rows: As many cells each.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """One figure, one table, or a figure with the numbers behind it.

    Attributes:
        name: Of its file, without an ending.
        title: What it shows, in a few words.
        caption: What is drawn, of which set and how many items, and how to tell good from bad.
        figure: The figure.
        table: The numbers.
    """

    name: str
    title: str
    caption: str
    figure: Figure | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Fact:
    """Where a report comes from, one line of it."""

    name: str
    value: str


@dataclass(frozen=True)
class Number:
    """One number that machines read from a report: W&B's summary, the JSON file.

    Attributes:
        name: Short, with the unit where there is one.
        value: The number itself, not rounded.
        low: Lower end of its 95% interval; None where it has none.
        high: Upper end.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        title: Of the page.
        summary: Sentences that say what matters, best read alone.
        sections: In reading order.
        facts: Data, versions, commands.
        missing: What could not be shown, and why.
        numbers: What the page is about, for machines.
    """

    title: str
    summary: Sequence[str]
    sections: Sequence[Section]
    facts: Sequence[Fact]
    missing: Sequence[str] = field(default_factory=list)
    numbers: Sequence[Number] = field(default_factory=list)
