"""Documents cut into a prompt and what follows, for refinement."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from kvmap.refinement.settings import RefinementSettings


class Cuts(NamedTuple):
    """Documents, and where prompts in them end.

    Attributes:
        ids: ``[B, T]`` tokens.
        prompts: Tokens of each prompt, ascending, the same for all documents; each leaves room for
            a continuation.
    """

    ids: Tensor
    prompts: list[int]


class DrawnCuts(IterableDataset):
    """Every document once per epoch, in random order, cut at random places.

    Args:
        documents: ``[documents, T]`` tokens.
        settings: Sizes.
        seed: With the epoch's number it decides order and cuts.
        epoch: Tells the number of the epoch that begins.
    """

    def __init__(
        self, documents: Tensor, settings: RefinementSettings, seed: int, epoch: Callable[[], int]
    ) -> None:
        self.documents, self.settings = documents, settings
        self.seed, self.epoch = seed, epoch

    def __len__(self) -> int:
        """Steps of an epoch."""
        return -(-len(self.documents) // self.settings.batch_size)

    def __iter__(self) -> Iterator[Cuts]:
        """The batches of one epoch."""
        settings = self.settings
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch())
        order = torch.randperm(len(self.documents), generator=draw)
        last = self.documents.shape[1] - settings.continuation
        for chosen in order.split(settings.batch_size):
            places = torch.randint(settings.shortest, last + 1, (settings.cuts,), generator=draw)
            yield Cuts(self.documents[chosen], sorted(places.tolist()))


EVEN = 4
"""Prompts that a measured document is cut into."""


class EvenCuts(IterableDataset):
    """Every document once, in order, each cut at the same places, evenly apart.

    Args:
        documents: ``[documents, T]`` tokens.
        settings: Sizes.
    """

    def __init__(self, documents: Tensor, settings: RefinementSettings) -> None:
        self.documents, self.settings = documents, settings

    def __len__(self) -> int:
        """Batches."""
        return -(-len(self.documents) // self.settings.batch_size)

    def __iter__(self) -> Iterator[Cuts]:
        """The batches."""
        settings = self.settings
        last = self.documents.shape[1] - settings.continuation
        places = torch.linspace(settings.shortest, last, EVEN).round().long().unique().tolist()
        for ids in self.documents.split(settings.batch_size):
            yield Cuts(ids, places)
