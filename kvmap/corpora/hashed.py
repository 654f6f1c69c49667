"""Corpora that come as one stream: a hash of each text decides its set."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator

from kvmap.corpora.base import Corpus, Split

SHARES: tuple[tuple[Split, int], ...] = (
    ("fit", 70),
    ("selection", 10),
    ("development", 10),
    ("test", 10),
)
"""Percent of the texts in each set."""


class HashedCorpus(Corpus):
    """Divides a stream of texts by their hash, so that copies of a text share a set."""

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """All texts, the same in the same order every time."""

    def documents(self, split: Split) -> Iterator[str]:
        """The texts whose hash falls into the set's share."""
        return (text for text in self.texts() if split_of(text) == split)


def split_of(text: str) -> Split:
    """The set of a text: its hash, blind to case and spacing, against the sets' shares."""
    digest = hashlib.sha256(" ".join(text.casefold().split()).encode()).digest()
    place = int.from_bytes(digest[:8], "big") % 100
    for split, share in SHARES:
        if place < share:
            return split
        place -= share
    raise AssertionError("the shares sum to 100")
