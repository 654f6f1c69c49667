"""What a collection costs on disk and in memory, known before anything is run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kvmap.errors import KVMapError
from kvmap.moments import Moments
from kvmap.recipe import COLLECTED, Recipe

GIB = 2**30
RESERVE = 2**26
"""Bytes that are left free."""

FreeBytes = Callable[[Path], int]


class SetBudget(NamedTuple):
    """One set's share of the cost.

    Attributes:
        split: the set.
        documents: how many.
        tokens: tokens that both models run over.
        rows: kept tokens.
        bytes: stored KV and queries; 0 for a set of which moments alone are kept.
    """

    split: str
    documents: int
    tokens: int
    rows: int
    bytes: int


class Budget(NamedTuple):
    """The whole cost.

    Attributes:
        sets: set by set.
        moments: bytes of one set's moments, in memory while it is collected and then on disk.
    """

    sets: tuple[SetBudget, ...]
    moments: int

    @property
    def bytes(self) -> int:
        """Everything on disk: the shards, each set's moments, and one interim copy."""
        return sum(each.bytes for each in self.sets) + (len(self.sets) + 1) * self.moments

    def __str__(self) -> str:
        """A table, GiB = 2^30 bytes."""
        lines = [f"{'set':<12}{'documents':>10}{'tokens':>12}{'rows':>10}{'GiB':>9}"]
        lines += [
            f"{s.split:<12}{s.documents:>10,}{s.tokens:>12,}{s.rows:>10,}{s.bytes / GIB:>9.3f}"
            for s in self.sets
        ]
        documents, tokens, rows = (
            sum(column) for column in list(zip(*self.sets, strict=True))[1:4]
        )
        total = f"{'in all':<12}{documents:>10,}{tokens:>12,}{rows:>10,}"
        lines.append(f"{total}{self.bytes / GIB:>9.3f}  with moments")
        lines.append(
            f"moments: {self.moments / GIB:.3f} GiB a set on disk, and in memory while collecting"
        )
        return "\n".join(lines)


def budget(recipe: Recipe, query_heads: int, pairs: bool) -> Budget:
    """The cost of a recipe.

    Args:
        recipe: what to collect.
        query_heads: G of the target.
        pairs: whether fit and selection KV are stored, not their moments alone.
    """
    source, target = recipe.source.shape, recipe.target.shape
    queries = target.layers * query_heads * recipe.queries * target.head_dim
    sets = []
    for split in COLLECTED:
        documents, rows = recipe.documents.of(split), recipe.rows(split)
        size = rows * recipe.row_bytes if pairs or split == "development" else 0
        if split == "development":
            size += documents * queries * recipe.torch_dtype.itemsize
        sets.append(SetBudget(split, documents, documents * recipe.length, rows, size))
    return Budget(tuple(sets), Moments.memory_bytes(source, target))


def free_bytes(folder: Path) -> int:
    """Bytes free on the disk where a folder is, or will be."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def require_space(needed: int, folder: Path, free: FreeBytes = free_bytes) -> None:
    """Refuse what does not fit.

    Args:
        needed: bytes that are still to be written.
        folder: where to.
        free: tells the free bytes; another one for tests.

    Raises:
        KVMapError: naming both sizes and the ways out.
    """
    there = free(folder)
    if needed + RESERVE > there:
        raise KVMapError(
            f"the collection needs {needed / GIB:.2f} GiB more and {folder} has "
            f"{there / GIB:.2f} GiB free; lower data.documents.fit, raise data.stride, use "
            "data.store=moments, or set data.root to a larger disk"
        )
