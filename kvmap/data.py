"""The Lightning data module: collects once, then serves moments, rows and documents."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from torch.utils.data import DataLoader

from kvmap.collect import collect, collection_folder
from kvmap.collection import Collection
from kvmap.corpora.base import Corpus
from kvmap.corpora.file import File
from kvmap.document_batches import DocumentBatches, Nothing
from kvmap.errors import KVMapError
from kvmap.manifest import Store
from kvmap.moments import Calibration
from kvmap.pair import ModelPair
from kvmap.recipe import CollectedSplit, DocumentCounts, Recipe
from kvmap.row_batches import RowBatches

if TYPE_CHECKING:
    from kvmap.mappers.base import Mapper


class KVPairDataModule(L.LightningDataModule):
    """Paired KV of a corpus.

    Args:
        pair: the models.
        corpus: the texts.
        root: the folder of collections.
        length: tokens per document.
        stride: of the fit set every so many-th token is kept.
        documents: how many documents in each set.
        queries: Q, query positions kept per development document.
        dtype: dtype of stored KV: ``float32``, ``bfloat16``, or ``auto`` for float32 when both
            models run in it and bfloat16 otherwise.
        store: ``moments`` keeps no KV of the fit and selection sets, only their moments.
        shard_rows: about how many rows a shard has.
        collect_batch_size: documents that a model runs at once while collecting.
        val_batch_size: documents in a validation batch.
        seed: decides the order of rows in gradient steps.

    Raises:
        KVMapError: for numbers or names that make no sense.
    """

    def __init__(
        self,
        pair: ModelPair,
        corpus: Corpus,
        root: str | Path = "collections",
        length: int = 1024,
        stride: int = 4,
        documents: DocumentCounts | None = None,
        queries: int = 32,
        dtype: str = "auto",
        store: Store = "pairs",
        shard_rows: int = 4096,
        collect_batch_size: int = 4,
        val_batch_size: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (
            ("collect_batch_size", collect_batch_size),
            ("val_batch_size", val_batch_size),
        ):
            if value < 1:
                raise KVMapError(f"data.{name}={value} must be at least 1; raise data.{name}")
        if store not in ("pairs", "moments"):
            raise KVMapError(f"data.store={store} is unknown; use pairs or moments")
        self.pair, self.corpus, self.root = pair, corpus, Path(root)
        self.length, self.stride, self.queries = length, stride, queries
        self.documents = documents or DocumentCounts()
        self.dtype, self.store, self.shard_rows = dtype, store, shard_rows
        self.collect_batch_size, self.val_batch_size = collect_batch_size, val_batch_size
        self.seed = seed

    @cached_property
    def recipe(self) -> Recipe:
        """All that decides the collection's numbers."""
        dtype = self.dtype
        if dtype == "auto":
            exact = {self.pair.source.dtype, self.pair.target.dtype} == {torch.float32}
            dtype = "float32" if exact else "bfloat16"
        return Recipe(
            source=self.pair.source.identity(),
            target=self.pair.target.identity(),
            corpus=self.corpus.identity(),
            length=self.length,
            stride=self.stride,
            documents=self.documents,
            queries=self.queries,
            dtype=dtype,
            shard_rows=self.shard_rows,
        )

    def prepare_data(self) -> None:
        """Collect what is not there yet; loads no model when all is."""
        collect(
            self.pair,
            self.corpus,
            self.recipe,
            self.root,
            store=self.store,
            batch_size=self.collect_batch_size,
        )

    def setup(self, stage: str) -> None:
        """Open the collection, on every rank."""
        _ = self.collection

    @cached_property
    def collection(self) -> Collection:
        """The complete collection; :meth:`prepare_data` comes first."""
        return Collection.open(collection_folder(self.root, self.pair, self.recipe))

    def calibration(self) -> Calibration:
        """The moments of the fit and selection sets."""
        return self.collection.calibration()

    def train_dataloader(self) -> DataLoader:
        """Shuffled fit rows for a family with ``gradient``, otherwise one batch of nothing.

        Batches are ``KVPair`` of ``[L, 1, H, rows, D]`` in float32.

        Raises:
            KVMapError: the family needs pairs and the collection has only moments.
        """
        mapper = self._mapper()
        if not mapper.gradient:
            return DataLoader(Nothing(), batch_size=None)
        if self.collection.stored != "pairs":
            raise KVMapError(
                f"mapper {mapper.family} learns from stored pairs; run with data.store=pairs"
            )
        rows = RowBatches(self.collection, mapper.batch_size, self.seed, self._epoch)
        return DataLoader(rows, batch_size=None)

    def val_dataloader(self) -> list[DataLoader]:
        """Development documents, and for a family with ``gradient`` selection documents as well.

        Batches are ``KVBatch``; under DDP every rank sees all of them, which leaves ratios of sums
        as they are.
        """
        splits: list[CollectedSplit] = ["development"]
        if self._mapper().gradient:
            splits.append("selection")
        return [
            DataLoader(
                DocumentBatches(self.collection, split, self.val_batch_size), batch_size=None
            )
            for split in splits
        ]

    def _mapper(self) -> "Mapper":
        if self.trainer is None or self.trainer.lightning_module is None:
            raise RuntimeError("loaders are made for a trainer's module")
        return self.trainer.lightning_module  # type: ignore[return-value]

    def _epoch(self) -> int:
        return self.trainer.current_epoch if self.trainer is not None else 0


class FileDataModule(KVPairDataModule):
    """Paired KV of a local file, so that its path can be given as ``data.path``.

    Args:
        pair: the models.
        path: a text file with blank lines between documents, or JSONL with ``text`` fields.
        options: what :class:`KVPairDataModule` takes besides a corpus.

    Raises:
        KVMapError: no path was given.
    """

    def __init__(self, pair: ModelPair, path: str | None = None, **options: Any) -> None:
        if not path:
            raise KVMapError("data=file reads a local file; name it with data.path=<file>")
        super().__init__(pair, File(path), **options)
