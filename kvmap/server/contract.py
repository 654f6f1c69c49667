"""What the server needs of an engine; :class:`kvmap.runtime.engine.Engine` is one."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair
from kvmap.runtime.answer import Piece, Stats
from kvmap.runtime.options import Mode, Options
from kvmap.runtime.prefill import Wanted, always


class PieceStream(Protocol):
    """One answer as it grows."""

    stats: Stats

    def __iter__(self) -> Iterator[Piece]:
        """The pieces."""
        ...

    def __next__(self) -> Piece:
        """The next round's piece."""
        ...

    def close(self) -> None:
        """Give up: caches are freed and no session is kept."""
        ...


class AnsweringEngine(Protocol):
    """Answers one prompt at a time; every call comes from the one thread that drives it."""

    pair: ModelPair
    mapper: Mapper | None
    mode: Mode
    tokenizer: PreTrainedTokenizerBase

    @property
    def limit(self) -> int:
        """Most positions: prompt and new tokens."""
        ...

    @property
    def live_bytes(self) -> int:
        """Memory of all caches alive."""
        ...

    def self_test(self) -> None:
        """Raise a ``KVMapError`` when the engine cannot be trusted."""
        ...

    def stream(
        self,
        prompt_ids: Sequence[int],
        options: Options | None = None,
        wanted: Wanted = always,
    ) -> PieceStream:
        """Answer one prompt piece by piece; ``Abandoned`` where nobody waits for the first."""
        ...
