"""What a corpus is: texts in four disjoint sets, and a way to tell it from another corpus."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["fit", "selection", "development", "test"]


@dataclass(frozen=True)
class CorpusIdentity:
    """A corpus in plain strings, for fingerprints and for people.

    Attributes:
        kind: which kind of corpus.
        content: what decides its texts: a hash of them, or a name with its revision.
        settings: how it was asked for, as ``name=value`` words.
    """

    kind: str
    content: str
    settings: str


class Corpus(ABC):
    """Texts in four sets. A text never stands in two of them, however often it occurs."""

    @abstractmethod
    def documents(self, split: Split) -> Iterator[str]:
        """The texts of one set, the same in the same order every time; may have no end."""

    @abstractmethod
    def identity(self) -> CorpusIdentity:
        """What tells this corpus from others; equal wherever its texts are equal."""
