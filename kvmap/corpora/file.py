"""A local file: plain text whose blank lines separate documents, or JSONL with ``text`` fields."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from kvmap.corpora.base import CorpusIdentity
from kvmap.corpora.hashed import HashedCorpus
from kvmap.errors import KVMapError


class File(HashedCorpus):
    """A UTF-8 file of texts.

    Args:
        path: the file; ``.jsonl`` is read as one JSON object a line, anything else as text.

    Raises:
        KVMapError: while reading, when the file is missing, unreadable, not UTF-8 text, or a line
            of JSONL has no ``text``.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def texts(self) -> Iterator[str]:
        """The documents in the file's order, empty ones left out."""
        read = self._records if self.path.suffix == ".jsonl" else self._paragraphs
        try:
            with self.path.open(encoding="utf-8") as lines:
                yield from read(lines)
        except OSError as error:
            raise self._unreadable(error) from error
        except UnicodeDecodeError as error:
            raise KVMapError(
                f"the corpus {self.path} is not UTF-8 text ({error.reason} at byte {error.start}); "
                "give data.path a text or JSONL file"
            ) from error

    def identity(self) -> CorpusIdentity:
        """The hash of the file's bytes; where it lies does not matter."""
        try:
            with self.path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self._unreadable(error) from error
        form = "jsonl" if self.path.suffix == ".jsonl" else "text"
        return CorpusIdentity("file", content, f"form={form}")

    def _paragraphs(self, lines: Iterator[str]) -> Iterator[str]:
        block: list[str] = []
        for line in lines:
            if "\0" in line:
                raise KVMapError(
                    f"the corpus {self.path} is a binary file; give data.path a text or JSONL file"
                )
            if line.strip():
                block.append(line)
            elif block:
                yield "".join(block).strip()
                block = []
        if block:
            yield "".join(block).strip()

    def _records(self, lines: Iterator[str]) -> Iterator[str]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError):
                text = None
            if not isinstance(text, str):
                raise KVMapError(
                    f'line {number} of the corpus {self.path} is not a JSON object with a "text" '
                    "string; mend the line, or give a plain text file another ending than .jsonl"
                )
            if text.strip():
                yield text.strip()

    def _unreadable(self, error: OSError) -> KVMapError:
        return KVMapError(
            f"cannot read the corpus {self.path} ({error.strerror}); give data.path a readable file"
        )
