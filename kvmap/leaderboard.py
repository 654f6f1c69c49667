"""The table of a sweep: all its runs, best first."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from kvmap.errors import KVMapError
from kvmap.jsonfile import read_object
from kvmap.run import METRICS, OWNER

Mode = Literal["max", "min"]
FILE = "leaderboard.md"
COLUMNS = (
    ("val/r2_keys", "R² keys", "{:.3f}"),
    ("val/r2_values", "R² values", "{:.3f}"),
    ("val/attention_cosine", "cosine", "{:.4f}"),
    ("val/key_error_concentration", "C_K", "{:.2f}"),
    ("val/value_error_concentration", "C_V", "{:.2f}"),
    ("selection/loss", "refined to KL", "{:.4f}"),
    ("weights", "weights", "{:,.0f}"),
    ("fit_seconds", "fit s", "{:.2f}"),
)


@dataclass(frozen=True)
class Row:
    """One finished run.

    Attributes:
        folder: Its folder.
        overrides: What was asked for on the command line.
        metrics: Its ``metrics.json``.
    """

    folder: Path
    overrides: tuple[str, ...]
    metrics: dict[str, float | None]

    def score(self, monitor: str, mode: Mode) -> float:
        """Sort key, larger is better; a run without the metric comes last."""
        value = self.metrics.get(monitor)
        if value is None:
            return -math.inf
        return value if mode == "max" else -value


def rows(root: Path, monitor: str, mode: Mode) -> list[Row]:
    """All finished runs in or below a folder, best first.

    Raises:
        KVMapError: The monitor is in no run's metrics.
    """
    found = []
    for path in sorted(root.rglob(METRICS)):
        owner = path.parent / OWNER
        if not owner.is_file():
            continue
        overrides = read_object(owner, "a run's owner file", "overrides")["overrides"]
        found.append(Row(path.parent, tuple(overrides), read_object(path, "a run's metrics")))
    if found and not any(monitor in row.metrics for row in found):
        known = ", ".join(sorted(found[0].metrics))
        raise KVMapError(f"monitor={monitor} was measured by no run in {root}; use one of {known}")
    return sorted(found, key=lambda row: row.score(monitor, mode), reverse=True)


def finished(root: Path, monitor: str, mode: Mode) -> list[Row]:
    """The finished runs in or below a folder that have the metric, best first; one at least.

    Raises:
        KVMapError: There is none, or the monitor is in no run's metrics.
    """
    ranked = [row for row in rows(root, monitor, mode) if row.metrics.get(monitor) is not None]
    if not ranked:
        raise KVMapError(f"no finished run in {root}; train one first: python train.py")
    return ranked


def table(ranked: list[Row], root: Path) -> str:
    """Markdown of runs in the order given; of what was asked for, what sets them apart.

    Args:
        ranked: The runs.
        root: The folder that theirs are told relative to.
    """
    common = set.intersection(*(set(row.overrides) for row in ranked)) if len(ranked) > 1 else set()
    columns = [each for each in COLUMNS if any(each[0] in row.metrics for row in ranked)]
    header = ["", "run", "asked for", *(title for _, title, _ in columns)]
    cells = [header, ["---"] * len(header)]
    for place, row in enumerate(ranked, 1):
        measured = (_cell(row.metrics.get(name), form) for name, _, form in columns)
        asked = " ".join(item for item in row.overrides if item not in common)
        cells.append([str(place), str(row.folder.relative_to(root)), asked, *measured])
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = (
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


class Leaderboard(Callback):
    """Keeps ``leaderboard.md`` in a sweep's root up to date and prints it at the end.

    Args:
        monitor: The metric to rank by.
        mode: ``max`` when larger is better.
    """

    def __init__(self, monitor: str, mode: Mode) -> None:
        self.monitor, self.mode = monitor, mode

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Write the table after every job, so that a sweep that dies leaves one."""
        if config.hydra.mode == RunMode.MULTIRUN:
            self._write(config)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print the table."""
        root, text = self._write(config)
        print(f"\nbest first by {self.monitor}:\n\n{text}\n\nsaved in {root / FILE}")

    def _write(self, config: DictConfig) -> tuple[Path, str]:
        root = Path(config.hydra.sweep.dir)
        text = table(rows(root, self.monitor, self.mode), root)
        (root / FILE).write_text(text + "\n", encoding="utf-8")
        return root, text
