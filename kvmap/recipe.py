"""All that decides the numbers of a collection, and the fingerprint made of it."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from kvmap.corpora.base import CorpusIdentity
from kvmap.errors import KVMapError
from kvmap.identity import Identity
from kvmap.kv import KVShape

FORMAT = 1
"""Version of the folder's layout and of how it is made; a change makes old collections unseen."""

SHARD_BYTES = 256 * 2**20
"""No shard of several documents is larger."""

CollectedSplit = Literal["fit", "selection", "development"]
COLLECTED: tuple[CollectedSplit, ...] = ("fit", "selection", "development")
"""The sets that are collected; the test set is kept for evaluation, which reads its texts."""


@dataclass(frozen=True)
class DocumentCounts:
    """Documents in each collected set."""

    fit: int = 192
    selection: int = 24
    development: int = 24

    def __post_init__(self) -> None:
        """Refuse counts below 1."""
        for split, count in asdict(self).items():
            _require_positive(f"documents.{split}", count)

    def of(self, split: CollectedSplit) -> int:
        """The count of one set."""
        return int(getattr(self, split))


@dataclass(frozen=True)
class Recipe:
    """What a collection is made of and how.

    Attributes:
        source: the source model.
        target: the target model.
        corpus: where the texts are from.
        length: tokens per document.
        stride: of the fit set every so many-th token is kept; of the others all.
        documents: how many of each set.
        queries: Q, query positions kept per development document.
        dtype: dtype of the stored KV, ``float32`` or ``bfloat16``; moments are float64 always.
        shard_rows: about how many rows (kept tokens) a shard has.
        format: version of the layout.

    Raises:
        KVMapError: for a number that makes no sense.
    """

    source: Identity
    target: Identity
    corpus: CorpusIdentity
    length: int
    stride: int
    documents: DocumentCounts
    queries: int
    dtype: str
    shard_rows: int
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        for name in ("length", "stride", "queries", "shard_rows"):
            _require_positive(name, getattr(self, name))
        if self.stride > self.length:
            raise KVMapError(
                f"data.stride={self.stride} keeps one token of documents of "
                f"data.length={self.length}; lower data.stride"
            )
        most = self.length - self.length // 4
        if self.queries > most:
            raise KVMapError(
                f"data.queries={self.queries} do not fit in the last three quarters of "
                f"data.length={self.length} tokens; lower data.queries to at most {most}"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise KVMapError(f"data.dtype={self.dtype} is unknown; use auto, float32 or bfloat16")

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that differ when anything here differs."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the stored KV."""
        return torch.float32 if self.dtype == "float32" else torch.bfloat16

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row, both models."""
        shapes = (self.source.shape, self.target.shape)
        return sum(shape.bytes_per_token(self.torch_dtype) for shape in shapes)

    def positions(self, split: CollectedSplit) -> Tensor:
        """``[T]`` positions of the kept tokens."""
        return torch.arange(0, self.length, self.stride if split == "fit" else 1)

    def query_positions(self) -> Tensor:
        """``[Q]`` evenly spaced positions of the last three quarters, both ends included."""
        return torch.linspace(self.length // 4, self.length - 1, self.queries).round().long()

    def rows_per_document(self, split: CollectedSplit) -> int:
        """Kept tokens of one document."""
        return len(self.positions(split))

    def rows(self, split: CollectedSplit) -> int:
        """Kept tokens of a set, N."""
        return self.documents.of(split) * self.rows_per_document(split)

    def shards(self, split: CollectedSplit) -> list[range]:
        """The documents of each shard."""
        rows = self.rows_per_document(split)
        fitting = min(self.shard_rows, SHARD_BYTES // self.row_bytes) // rows
        count, each = self.documents.of(split), max(1, fitting)
        return [range(first, min(first + each, count)) for first in range(0, count, each)]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The recipe that ``dataclasses.asdict`` wrote and JSON kept."""
        sides = {
            side: Identity(**values[side] | {"shape": KVShape(*values[side]["shape"])})
            for side in ("source", "target")
        }
        corpus = CorpusIdentity(**values["corpus"])
        documents = DocumentCounts(**values["documents"])
        return cls(**values | sides | {"corpus": corpus, "documents": documents})


def shard_name(split: CollectedSplit, number: int) -> str:
    """The file name of a shard."""
    return f"{split}-{number:05d}.safetensors"


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise KVMapError(f"data.{name}={value} must be at least 1; raise data.{name}")
