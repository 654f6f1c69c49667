"""Whole documents of a collection, for measuring; and the batch of those who need none."""

from collections.abc import Iterator

import torch
from torch.utils.data import Dataset, IterableDataset

from kvmap.collection import Collection
from kvmap.kv import KVBatch
from kvmap.recipe import CollectedSplit


class Nothing(Dataset):
    """The one batch of a family that learned all it can from moments."""

    def __len__(self) -> int:
        """One."""
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        """A zero."""
        return torch.zeros(())


class DocumentBatches(IterableDataset):
    """A set's documents in batches, in order.

    Args:
        collection: where from.
        split: which set.
        documents: most documents in a batch.
    """

    def __init__(self, collection: Collection, split: CollectedSplit, documents: int) -> None:
        self.collection, self.split, self.documents = collection, split, documents

    def __len__(self) -> int:
        """Batches."""
        shards = self.collection.recipe.shards(self.split)
        return sum(-(-len(shard) // self.documents) for shard in shards)

    def __iter__(self) -> Iterator[KVBatch]:
        """The batches."""
        return self.collection.batches(self.split, self.documents)
