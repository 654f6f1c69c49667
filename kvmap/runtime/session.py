"""Caches kept from one turn of a conversation to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvmap.buffer import Buffer
from kvmap.runtime.options import Mode


class SessionKey(NamedTuple):
    """What decides whether KV of the same tokens is the same KV."""

    mode: Mode
    source: str
    target: str
    mapper: str
    repair: str
    dtypes: str


@dataclass
class Caches:
    """The buffers of one conversation.

    Attributes:
        source: The source's KV; None where it takes no part.
        target: The target's, likewise.
        before: Tokens of a delivered turn that they continue, 0 for none.
    """

    source: Buffer | None
    target: Buffer | None
    before: int = 0

    def of(self, source: bool) -> Buffer | None:
        """The source's buffer or the target's."""
        return self.source if source else self.target

    @property
    def bytes(self) -> int:
        """Their memory."""
        return sum(each.bytes for each in (self.source, self.target) if each is not None)


@dataclass
class Session:
    """A conversation at rest.

    Attributes:
        key: What made its KV.
        tokens: Whose KV it is, from the first; a buffer may hold fewer.
        caches: The KV.
    """

    key: SessionKey
    tokens: list[int]
    caches: Caches


class Found(NamedTuple):
    """Where a prompt can begin."""

    session: Session
    common: int
    whole: bool  # all that the session holds is the prompt's beginning


class Sessions:
    """Conversations at rest, bounded by their memory; the least recently used goes first.

    Args:
        limit: Bytes; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: list[Session] = []  # least recently used first

    @property
    def bytes(self) -> int:
        """Memory of all that is kept."""
        return sum(each.caches.bytes for each in self._kept)

    def find(self, key: SessionKey, prompt: Sequence[int]) -> Found | None:
        """The session with the longest common token prefix, less the prompt's last token.

        The last prompt token is always read anew, since its logits are needed. A session of which
        everything continues is taken out, for its turn will replace it; of another one the caller
        copies the beginning.
        """
        best: Found | None = None
        for session in self._kept:
            if session.key != key:
                continue
            common = _common(session.tokens, prompt[:-1])
            if common and (best is None or common > best.common):
                best = Found(session, common, common == len(session.tokens))
        if best is not None:
            self._kept.remove(best.session)
            if not best.whole:
                self._kept.append(best.session)
        return best

    def keep(self, session: Session) -> None:
        """Keep a delivered turn; drop the least recently used beyond the limit."""
        self._kept.append(session)
        while self._kept and self.bytes > self.limit:
            self._kept.pop(0)

    def forget(self) -> None:
        """Drop everything."""
        self._kept.clear()


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
