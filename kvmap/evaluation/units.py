"""Finished pieces of work on disk, so that an interrupted evaluation goes on where it was."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from kvmap.errors import KVMapError
from kvmap.evaluation.structure import structure
from kvmap.jsonfile import read_json, write_json

T = TypeVar("T")


@dataclass(frozen=True)
class Unit:
    """One piece of work, by all that decides its numbers.

    Attributes:
        what: A short name for people: the task, the arm, which passages.
        decided_by: Plain values; two units are equal when these are.
    """

    what: str
    decided_by: dict[str, Any]

    @property
    def file(self) -> str:
        """Its file's name."""
        text = json.dumps(self.decided_by, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        words = "".join(c if c.isalnum() else "-" for c in self.what)
        return f"{words}-{digest}.json"


class Units:
    """A folder of finished units.

    Args:
        folder: Where they lie; made when missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, unit: Unit, kind: type[T]) -> list[T] | None:
        """A finished unit's records; None when it is not finished, or its file is damaged."""
        path = self.folder / unit.file
        if not path.is_file():
            return None
        try:
            return structure(list[kind], read_json(path, "a unit"))  # type: ignore[valid-type]
        except (KVMapError, TypeError):
            return None  # whoever measures it again replaces it

    def store(self, unit: Unit, records: Sequence[Any]) -> None:
        """Keep a unit's records, which are dataclasses of plain values."""
        write_json(self.folder / unit.file, [asdict(record) for record in records])
