"""Caches for requests: new ones, or what earlier requests left."""

import weakref
from collections.abc import Callable

from kvmap.buffer import Buffer
from kvmap.runtime.answer import Stats
from kvmap.runtime.options import Mode, Options
from kvmap.runtime.runner import Runner
from kvmap.runtime.session import Caches, Found, Session, SessionKey, Sessions
from kvmap.runtime.settings import Settings


class Memory:
    """Gives a request its buffers, and keeps those of delivered turns.

    Args:
        source: Whose KV the source's buffers hold.
        target: Whose KV the target's buffers hold.
        settings: How many bytes conversations at rest may take.
        key: What decides the KV of tokens that are answered in a mode.
    """

    def __init__(
        self, source: Runner, target: Runner, settings: Settings, key: Callable[[Mode], SessionKey]
    ) -> None:
        self._source, self._target, self._key = source, target, key
        self._spare = settings.schedule.most + 1  # a block may pass the last token
        self._sessions = Sessions(settings.session_bytes)
        self._alive: weakref.WeakSet[Buffer] = weakref.WeakSet()

    @property
    def bytes(self) -> int:
        """Of all buffers alive, of running requests and of conversations at rest."""
        return sum(buffer.bytes for buffer in self._alive)

    def forget(self) -> None:
        """Drop all conversations at rest."""
        self._sessions.forget()

    def keep(self, mode: Mode, tokens: list[int], caches: Caches) -> None:
        """Keep the caches of a delivered turn, which hold (a beginning of) these tokens."""
        self._sessions.keep(Session(self._key(mode), tokens, caches))

    def give_up(self, mode: Mode, prompt: list[int], caches: Caches) -> None:
        """Keep of an aborted turn what the turn before it had left, so that it can be retried."""
        if not caches.before:
            return
        for buffer in (caches.source, caches.target):
            if buffer is not None:
                buffer.keep(min(buffer.length, caches.before))
        self.keep(mode, prompt[: caches.before], caches)

    def begin(self, prompt: list[int], options: Options, mode: Mode, stats: Stats) -> Caches:
        """Buffers with room for the answer, holding what is known of the prompt."""
        capacity = len(prompt) + options.max_new_tokens + self._spare
        found, handed = self._earlier(prompt, mode) if options.reuse else (None, None)
        stats.reused = found.common if found else 0
        source = target = None
        if mode != "target":
            source = self._buffer(self._source, handed or found, capacity)
        if mode != "source":
            target = self._buffer(self._target, found, capacity)
        return Caches(source, target, found.common if found and found.whole else 0)

    def _earlier(self, prompt: list[int], mode: Mode) -> tuple[Found | None, Found | None]:
        """The best session of this mode, and one of the source alone if it has read more."""
        found = self._sessions.find(self._key(mode), prompt)
        if mode != "mapped":
            return found, None
        handed = self._sessions.find(self._key("source"), prompt)
        if handed is not None and handed.common > (found.common if found else 0):
            return found, handed
        return found, None

    def _buffer(self, runner: Runner, found: Found | None, capacity: int) -> Buffer:
        """A buffer with what a session holds of the prompt, in place where there is room."""
        old = None if found is None else found.session.caches.of(runner is self._source)
        if found is not None and old is not None:
            held = min(old.length, found.common)
            if found.whole and old.capacity >= capacity:
                old.keep(held)
                return old
        new = runner.buffer(capacity)
        self._alive.add(new)
        if found is not None and old is not None:
            new.copy_from(old, held)
        return new
