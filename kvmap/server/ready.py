"""What requests need of a loaded engine; nothing of it touches the engine."""

from typing import NamedTuple, Self

from kvmap.server.contract import AnsweringEngine
from kvmap.server.encoder import Encoder
from kvmap.server.summary import Served
from kvmap.server.token_text import TokenTexts


class Ready(NamedTuple):
    """A loaded engine as the event loop knows it."""

    served: Served
    encode: Encoder
    texts: TokenTexts

    @classmethod
    def of(cls, engine: AnsweringEngine, model: str | None) -> Self:
        """Prepare for an engine, under a name or under its pair's."""
        encoder = Encoder(engine.tokenizer)
        return cls(Served.of(engine, model), encoder, TokenTexts(encoder.tokenizer))
