"""Shuffled rows of a collection's fit set, for families that learn by gradient steps."""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import IterableDataset

from kvmap.collection import Collection
from kvmap.kv import KV, KVPair

MEMORY_BYTES = 4 * 2**30
"""Rows of so many bytes are held at once: the whole set where it fits, so that it is read once."""


class Rows(NamedTuple):
    """Rows side by side, each ``[N, L, H, D]``, in the storage dtype."""

    source_keys: Tensor
    source_values: Tensor
    target_keys: Tensor
    target_values: Tensor

    def take(self, chosen: Tensor | slice) -> "Rows":
        """Some of the rows."""
        return Rows(*(part[chosen] for part in self))

    def pair(self) -> KVPair:
        """As a batch for a mapper: ``[L, 1, H, N, D]``, float32, contiguous."""
        keys, values, exact_keys, exact_values = (
            part.permute(1, 2, 0, 3).to(torch.float32).contiguous()[:, None] for part in self
        )
        return KVPair(KV(keys, values), KV(exact_keys, exact_values))


class RowBatches(IterableDataset):
    """Every row of the fit set once per epoch, in random order, in batches of equal size.

    The order of the shards is drawn anew each epoch, and rows are shuffled among those that fit in
    memory together (usually all). Under DDP each rank takes its share of the rows; at most one row
    per rank and memory load is left out, so that all ranks make equally many steps.

    Args:
        collection: with stored pairs.
        batch_size: rows per batch; the last batch of an epoch may be smaller.
        seed: with the epoch's number it decides the order.
        epoch: tells the number of the epoch that begins.
        memory: bytes of rows held at once.
    """

    def __init__(
        self,
        collection: Collection,
        batch_size: int,
        seed: int,
        epoch: Callable[[], int],
        memory: int = MEMORY_BYTES,
    ) -> None:
        self.collection, self.batch_size = collection, batch_size
        self.seed, self.epoch = seed, epoch
        recipe = collection.recipe
        per_document = recipe.rows_per_document("fit")
        self.shard_rows = [len(shard) * per_document for shard in recipe.shards("fit")]
        largest = max(self.shard_rows) * recipe.row_bytes
        self.shards_at_once = max(1, memory // largest)

    def __len__(self) -> int:
        """Batches per epoch of this rank."""
        return math.ceil(sum(len(load) for load in self._loads()) / self.batch_size)

    def __iter__(self) -> Iterator[KVPair]:
        """The batches of one epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch())
        left: Rows | None = None
        for load in self._loads(generator):
            held = self._read(load.shards)
            order = torch.randperm(load.rows, generator=generator)[load.mine]
            if left is not None:
                # Rows that did not fill a batch are the first of the next one.
                need = self.batch_size - len(left.source_keys)
                first = held.take(order[:need])
                left = Rows(*(torch.cat(parts) for parts in zip(left, first, strict=True)))
                order = order[need:]
                if len(left.source_keys) < self.batch_size:
                    continue
                yield left.pair()
                left = None
            whole = len(order) // self.batch_size * self.batch_size
            for chosen in order[:whole].split(self.batch_size) if whole else ():
                yield held.take(chosen).pair()
            if whole < len(order):
                left = held.take(order[whole:])
        if left is not None:
            yield left.pair()

    def _loads(self, generator: torch.Generator | None = None) -> list["_Load"]:
        """The shards in the epoch's order, grouped as they are held in memory."""
        count = len(self.shard_rows)
        if count <= self.shards_at_once or generator is None:
            order = list(range(count))
        else:
            order = torch.randperm(count, generator=generator).tolist()
        groups = [order[i : i + self.shards_at_once] for i in range(0, count, self.shards_at_once)]
        return [_Load(group, sum(self.shard_rows[shard] for shard in group)) for group in groups]

    def _read(self, shards: list[int]) -> Rows:
        if len(shards) == len(self.shard_rows):
            return self._all
        return _rows(self.collection, shards)

    @cached_property
    def _all(self) -> Rows:
        """All rows, read in the first epoch and kept."""
        return _rows(self.collection, list(range(len(self.shard_rows))))


class _Load:
    """Shards held together, and this rank's share of their rows."""

    def __init__(self, shards: list[int], rows: int) -> None:
        self.shards, self.rows = shards, rows
        distributed = dist.is_available() and dist.is_initialized()
        world, rank = (dist.get_world_size(), dist.get_rank()) if distributed else (1, 0)
        self.mine = slice(rank, rows // world * world, world)

    def __len__(self) -> int:
        return len(range(*self.mine.indices(self.rows)))


def _rows(collection: Collection, shards: list[int]) -> Rows:
    """Read shards into one block of rows."""
    read = (_by_row(collection.shard("fit", shard).pair) for shard in shards)
    return Rows(*(torch.cat(parts) for parts in zip(*read, strict=True)))


def _by_row(pair: KVPair) -> Rows:
    """Turn ``[L, B, H, T, D]`` into ``[B * T, L, H, D]``."""
    parts = (*pair.source, *pair.target)
    return Rows(*(part.permute(1, 3, 0, 2, 4).flatten(0, 1).contiguous() for part in parts))
