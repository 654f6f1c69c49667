"""The moments of a set while it is being collected, kept on disk so that they can go on."""

import re
import time
from pathlib import Path

from kvmap.kv import KVPair, KVShape
from kvmap.moments import Moments
from kvmap.recipe import CollectedSplit

PATIENCE = 20.0
"""Moments are saved when so many times the time of a save went by: at most 5% is spent on it."""


def moments_name(split: CollectedSplit) -> str:
    """The file name of a set's finished moments."""
    return f"moments-{split}.safetensors"


class RunningMoments:
    """Adds shards in their order, so that an interrupted sum ends bit-equal to a straight one.

    Float addition depends on its order. So the sum is saved as it stands, with the number of shards
    in it (in the file's name), and goes on from there.

    Args:
        folder: the collection's.
        split: the set.
        source: the source's shape.
        target: the target's shape.
    """

    def __init__(
        self, folder: Path, split: CollectedSplit, source: KVShape, target: KVShape
    ) -> None:
        self.folder, self.split = folder, split
        self.finished = (folder / moments_name(split)).is_file()
        self.shards = 0
        self.moments: Moments | None = None
        if self.finished:
            return
        saved = self._saved()
        if saved:
            self.shards = max(saved)
            self.moments = _aligned(Moments.load(saved[self.shards]))
        else:
            self.moments = Moments.zeros(source, target)
        self._on_disk = self.shards
        self._whole = True
        self._last_save, self._save_seconds = time.monotonic(), 0.5

    def wants(self, number: int) -> bool:
        """Whether a shard is not yet in the sum."""
        return not self.finished and number >= self.shards

    def add(self, number: int, pair: KVPair) -> None:
        """Add the next shard's rows, not yet rounded to the storage dtype."""
        if number != self.shards or self.moments is None:
            raise ValueError(f"shard {number} after {self.shards} shards of {self.split}")
        self._whole = False
        self.moments.update(pair)
        self._whole = True
        self.shards += 1
        if time.monotonic() - self._last_save > PATIENCE * self._save_seconds:
            self.save()

    def save(self) -> None:
        """Keep the sum; nothing if an error left it half updated, or it is on disk already."""
        if self.finished or self.moments is None or not self._whole:
            return
        if self.shards == self._on_disk:
            return
        started = time.monotonic()
        before = self._saved().values()
        self.moments.save(self._path(self.shards))
        for path in before:
            path.unlink()
        self._on_disk = self.shards
        self._last_save = time.monotonic()
        self._save_seconds = self._last_save - started

    def finish(self) -> None:
        """Give the sum of all shards its final name and let go of its memory."""
        if self.finished or self.moments is None:
            return
        self.moments.save(self.folder / moments_name(self.split))
        for path in self._saved().values():
            path.unlink()
        self.finished, self.moments = True, None

    def _path(self, shards: int) -> Path:
        return self.folder / f"moments-{self.split}-of-{shards:05d}.safetensors"

    def _saved(self) -> dict[int, Path]:
        """Sums on disk by the number of shards in them."""
        name = re.compile(rf"moments-{self.split}-of-(\d+)\.safetensors")
        found = ((name.fullmatch(path.name), path) for path in self.folder.iterdir())
        return {int(match[1]): path for match, path in found if match}


def _aligned(moments: Moments) -> Moments:
    """Copy the sums, in place, to memory as torch allots it.

    A matrix product may round differently on the unaligned memory of a mapped file, and then a
    resumed sum would differ from a straight one in its last bits.
    """
    for name in ("sum_x", "sum_y", "xx", "xy", "yy"):
        setattr(moments, name, getattr(moments, name).clone())
    return moments
