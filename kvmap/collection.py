"""A collection on disk: paired KV of documents, and their moments. Reading needs no model."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.identity import Identity
from kvmap.kv import KV, KVBatch, KVPair, KVShape
from kvmap.manifest import Manifest, Store
from kvmap.moments import Calibration, Moments
from kvmap.recipe import COLLECTED, CollectedSplit, shard_name
from kvmap.rope import Rotary
from kvmap.running import moments_name
from kvmap.shards import Shard, ShardLayout, check_shard, read_shard

DOCUMENTS = "documents.safetensors"


class Collection:
    """Reads a complete collection. Never loads a language model.

    Args:
        folder: the collection's folder.
        manifest: what stands in its ``collection.json``.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.recipe = manifest.recipe

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open a complete collection.

        Raises:
            KVMapError: it is not complete, or a file of it is missing or damaged.
        """
        folder = Path(folder)
        collection = cls(folder, Manifest.load(folder))
        if collection.stored is None:
            raise KVMapError(f"the collection {folder} is not complete; run again to complete it")
        collection.check()
        return collection

    @property
    def stored(self) -> Store | None:
        """``pairs``, ``moments``, or None while incomplete."""
        return self.manifest.stored

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits of all that made it."""
        return self.recipe.fingerprint

    @property
    def source_identity(self) -> Identity:
        """What the source was."""
        return self.recipe.source

    @property
    def target_identity(self) -> Identity:
        """What the target was."""
        return self.recipe.target

    @property
    def source_shape(self) -> KVShape:
        """The source's shape."""
        return self.recipe.source.shape

    @property
    def target_shape(self) -> KVShape:
        """The target's shape."""
        return self.recipe.target.shape

    @cached_property
    def source_rotary(self) -> Rotary:
        """The source's rotary embedding."""
        return self.manifest.rotary("source")

    @cached_property
    def target_rotary(self) -> Rotary:
        """The target's rotary embedding."""
        return self.manifest.rotary("target")

    @property
    def query_heads(self) -> int:
        """G of the target."""
        return self.manifest.query_heads

    @property
    def attention_scaling(self) -> float:
        """The target's factor on q·k inside the softmax."""
        return self.manifest.attention_scaling

    def rows(self, split: CollectedSplit) -> int:
        """Kept tokens of a set, N."""
        return self.recipe.rows(split)

    def positions(self, split: CollectedSplit) -> Tensor:
        """``[T]`` positions of the kept tokens of each document."""
        return self.recipe.positions(split)

    def documents(self, split: CollectedSplit) -> Tensor:
        """``[documents, length]`` token ids, int64."""
        path = self.folder / DOCUMENTS
        try:
            return load_file(path)[split].long()
        except (OSError, SafetensorError, KeyError) as error:
            raise KVMapError(
                f"cannot read {path} ({error}); delete it and run again: the shards are kept"
            ) from error

    def moments(self, split: CollectedSplit) -> Moments:
        """A set's moments, of its rows before they were rounded to the storage dtype."""
        return Moments.load(self.folder / moments_name(split))

    def calibration(self) -> Calibration:
        """The moments that a closed-form fit reads."""
        return Calibration(self.moments("fit"), self.moments("selection"))

    def stores(self, split: CollectedSplit) -> bool:
        """Whether the KV of a set is stored, not its moments alone."""
        return split == "development" or self.stored == "pairs"

    def layout(self, split: CollectedSplit, number: int) -> ShardLayout:
        """What a shard must hold."""
        recipe = self.recipe
        return ShardLayout(
            self.source_shape,
            self.target_shape,
            len(recipe.shards(split)[number]),
            recipe.rows_per_document(split),
            (self.query_heads, recipe.queries) if split == "development" else None,
            recipe.torch_dtype,
        )

    def shard(self, split: CollectedSplit, number: int) -> Shard:
        """A shard in the dtype in which it is stored.

        Raises:
            KVMapError: the set is not stored, or the shard is missing or damaged.
        """
        if not self.stores(split):
            raise KVMapError(
                f"the collection {self.folder} keeps only moments of its {split} set; "
                "run with data.store=pairs"
            )
        path = self.folder / shard_name(split, number)
        return read_shard(path, self.layout(split, number))

    def batches(self, split: CollectedSplit, documents: int = 4) -> Iterator[KVBatch]:
        """The documents of a set in order, KV in float32.

        Args:
            split: the set.
            documents: most documents in a batch; a batch never spans two shards.
        """
        positions = self.positions(split)
        at = self.recipe.query_positions() if split == "development" else None
        for number in range(len(self.recipe.shards(split))):
            (source, target), queries = self.shard(split, number)
            for first in range(0, source.keys.shape[1], documents):
                chosen = slice(first, first + documents)
                pair = KVPair(*(_documents(kv, chosen) for kv in (source, target)))
                asked = None if queries is None else queries[:, chosen].float()
                yield KVBatch(pair, positions, asked, at)

    def check(self) -> None:
        """See from names, headers and lengths that every file is there and whole.

        Raises:
            KVMapError: naming the first file that is not.
        """
        for split in COLLECTED:
            path = self.folder / moments_name(split)
            if not path.is_file():
                raise KVMapError(f"{path} is missing; run again to collect the {split} moments")
            if self.stores(split):
                for number in range(len(self.recipe.shards(split))):
                    name = shard_name(split, number)
                    check_shard(self.folder / name, self.layout(split, number))


def _documents(kv: KV, chosen: slice) -> KV:
    """Some documents' KV in float32."""
    keys, values = (part[:, chosen].to(torch.float32) for part in kv)
    return KV(keys, values)
