"""One prompt on its way through the engine, as the event loop and the engine thread see it."""

import asyncio
import time
from collections.abc import Sequence

from kvmap.runtime.answer import Piece
from kvmap.runtime.options import Options
from kvmap.server.errors import APIError
from kvmap.server.summary import Summary

Event = Piece | Summary | APIError
"""Pieces come first; a summary or an error is the last."""


class Job:
    """A prompt and what comes back.

    Made on the event loop, whose :meth:`next` waits for what the engine thread posts.

    Args:
        prompt: Token ids.
        options: What to generate.

    Attributes:
        abandoned: Whether nobody waits any more; the engine thread looks after every round.
        submitted: When it was made, of ``time.perf_counter()``.
    """

    def __init__(self, prompt: Sequence[int], options: Options) -> None:
        self.prompt, self.options = prompt, options
        self.abandoned = False
        self.submitted = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def post(self, event: Event) -> None:
        """Hand an event over, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop is closed: the server has gone
            self.abandoned = True

    async def next(self) -> Event:
        """The next event."""
        return await self._events.get()
