"""The small English that the embedded pair was trained on, which needs no file and no network."""

import hashlib
import itertools
from collections.abc import Iterator

from kvmap.corpora.base import Corpus, CorpusIdentity, Split
from kvmap.tiny.english import English

RANGES: dict[Split, tuple[str, int]] = {
    "fit": ("calibration", 0),
    "selection": ("calibration", 10_000_000),
    "development": ("development", 0),
    "test": ("test", 0),
}
"""Where each set begins: the generator's split and the index of the first document."""

MARGIN = 1.05
"""Documents are written this much longer, since not every word is exactly one token."""


class Embedded(Corpus):
    """Generated documents; each set has as many as anybody asks for.

    Args:
        words: least length of a document in words; give the collection's ``length``.
        facts: facts per document; None for the number that the embedded pair was trained on.
        seed: another seed gives other documents of the same language.
    """

    def __init__(self, words: int = 1024, facts: int | None = None, seed: int = 0) -> None:
        written = round(words * MARGIN)
        self.english = (
            English(words=written, seed=seed)
            if facts is None
            else English(words=written, seed=seed, facts=facts)
        )

    def documents(self, split: Split) -> Iterator[str]:
        """Document after document, without end."""
        part, first = RANGES[split]
        return (self.english.document(part, index).text for index in itertools.count(first))

    def identity(self) -> CorpusIdentity:
        """The settings, and a hash of sample documents that changes with the generator."""
        sample = "\0".join(
            text for split in RANGES for text in itertools.islice(self.documents(split), 2)
        )
        english = self.english
        return CorpusIdentity(
            "embedded",
            hashlib.sha256(sample.encode()).hexdigest(),
            f"facts={english.facts} seed={english.seed} words={english.words}",
        )
