"""The Lightning data module of a refinement: the documents of a collection, as tokens."""

import lightning as L
from torch.utils.data import DataLoader

from kvmap.data import KVPairDataModule
from kvmap.document_batches import DocumentBatches
from kvmap.refinement.cuts import DrawnCuts, EvenCuts
from kvmap.refinement.settings import RefinementSettings


class RefinementData(L.LightningDataModule):
    """Cuts of the fit documents to learn from; development and selection documents to measure on.

    Args:
        pairs: The collection's data module.
        settings: Sizes.

    Raises:
        KVMapError: No prompt has room in the collection's documents.
    """

    def __init__(self, pairs: KVPairDataModule, settings: RefinementSettings) -> None:
        super().__init__()
        settings.require_length(pairs.length)
        self.pairs, self.settings = pairs, settings

    def prepare_data(self) -> None:
        """Collect what is not there yet."""
        self.pairs.prepare_data()

    def train_dataloader(self) -> DataLoader:
        """Cuts of the fit documents, drawn anew each epoch."""
        documents = self.pairs.collection.documents("fit")
        cuts = DrawnCuts(documents, self.settings, self.pairs.seed, self._epoch)
        return DataLoader(cuts, batch_size=None)

    def val_dataloader(self) -> list[DataLoader]:
        """Development documents as ``KVBatch``, and cuts of the selection documents."""
        collection = self.pairs.collection
        development = DocumentBatches(collection, "development", self.pairs.val_batch_size)
        selection = EvenCuts(collection.documents("selection"), self.settings)
        return [DataLoader(each, batch_size=None) for each in (development, selection)]

    def _epoch(self) -> int:
        return self.trainer.current_epoch if self.trainer is not None else 0
