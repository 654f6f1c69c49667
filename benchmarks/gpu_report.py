"""The report of a GPU benchmark: Markdown on the screen, JSON in a file."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_checks import Check

from kvmap.benchmark.report import markdown

Cell = str | float | int | None


@dataclass
class Table:
    """A part of the report; times in milliseconds unless a column says otherwise."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    note: str = ""

    def __str__(self) -> str:
        """In Markdown."""
        text = (
            f"\n## {self.title}\n\n{markdown(self.header, [[*map(_shown, r)] for r in self.rows])}"
        )
        return text + (f"\n\n{self.note}" if self.note else "")


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return str(cell)


@dataclass
class Report:
    """All that is known so far, on the screen and in a file."""

    out: Path
    environment: dict[str, object]
    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    def add(self, table: Table) -> None:
        """Show a table and keep it."""
        print(table, flush=True)
        self.tables.append(table)
        self.save()

    def leave_out(self, what: str) -> None:
        """Say what is not measured, and why."""
        print(f"\nLeft out: {what}.", flush=True)
        self.left_out.append(what)
        self.save()

    def fail(self, what: str, error: Exception) -> None:
        """Say what went wrong."""
        self.failed.append(f"{what}: {type(error).__name__}: {error}")
        print(f"\nFailed: {self.failed[-1]}", flush=True)
        self.save()

    def save(self) -> None:
        """Write what there is."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        known = {
            name: value for name, value in vars(self).items() if name not in ("out", "started")
        }
        known["checks"] = [asdict(each) for each in self.checks]
        known["tables"] = [asdict(each) for each in self.tables]
        self.out.write_text(json.dumps(known | {"seconds": self.seconds}, indent=1))
