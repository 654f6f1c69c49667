"""From a prompt to the answering model's cache and its logits after the last prompt token."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from kvmap.buffer import Buffer
from kvmap.mappers.base import Mapper
from kvmap.runtime.answer import Stats
from kvmap.runtime.guard import difference
from kvmap.runtime.mapped import map_into
from kvmap.runtime.options import Abandoned
from kvmap.runtime.runner import Runner
from kvmap.runtime.settings import Settings
from kvmap.runtime.transfer import Landing, Link

Wanted = Callable[[], bool]
"""Whether somebody still waits for the answer; any thread may change its mind."""


def always() -> bool:
    """Somebody does."""
    return True


def require(wanted: Wanted) -> None:
    """Go on only while somebody waits.

    Raises:
        Abandoned: Nobody does.
    """
    if not wanted():
        raise Abandoned


class Reading:
    """Native prefill: one model reads the prompt.

    Args:
        runner: The model.
        chunk: Tokens at a time; 0 for all at once.
        wanted: Asked before every chunk whether somebody still waits.
    """

    def __init__(self, runner: Runner, chunk: int, wanted: Wanted = always) -> None:
        self._runner, self._chunk, self._wanted = runner, chunk, wanted

    def __call__(self, prompt: Tensor, buffer: Buffer, stats: Stats) -> Tensor:
        """Read what the buffer does not hold yet of the prompt ``[P]``; logits ``[1, V]``."""
        start, stop = buffer.length, len(prompt)
        with stats.stages.stage("prefill", self._runner.device):
            for first, last in chunks(start, stop, self._chunk):
                require(self._wanted)
                if last < stop:
                    self._runner.read(prompt[first:last], buffer)
            logits = self._runner.logits(prompt[buffer.length :], buffer, keep=1)
        stats.prefilled += stop - start
        return logits


class MappedPrefill:
    """The source reads, its KV moves and is mapped, the target repairs.

    Args:
        source: The source.
        target: The target.
        mapper: On the target's device.
        link: Between the two.
        settings: Repair, chunk, guard.
        wanted: Asked before every chunk whether somebody still waits.
    """

    def __init__(
        self,
        source: Runner,
        target: Runner,
        mapper: Mapper,
        link: Link,
        settings: Settings,
        wanted: Wanted = always,
    ) -> None:
        self._source, self._target, self._mapper, self._link = source, target, mapper, link
        self._settings = settings
        self._wanted = wanted
        self._native = Reading(target, settings.chunk, wanted)

    def __call__(
        self, prompt: Sequence[int], source: Buffer, target: Buffer, stats: Stats
    ) -> Tensor:
        """Fill both buffers; the target's logits after the prompt, ``[1, V]``.

        Both may hold a beginning of the prompt already; where the source's is longer, as after an
        answer of the source alone, it is mapped without being read. The source's is left without
        the repaired tokens, unless the guard wanted them: it reads them when it drafts, after the
        first token has been given.
        """
        held, stop = target.length, len(prompt)
        new = stop - held
        repaired = min(max(self._settings.repair.tokens, 1), new)
        prefix = min(self._settings.repair.prefix, new - repaired) if held == 0 else 0
        at_target = torch.tensor(prompt, device=self._target.device)
        if new < self._settings.native_below:
            return self._native(at_target, target, stats)
        if prefix:
            with stats.stages.stage("repair", self._target.device):
                self._target.read(at_target[:prefix], target)
        at_source = torch.tensor(prompt, device=self._source.device)
        stats.warm = max(source.length - held, 0)
        self._map(at_source[: stop - repaired], source, target, stats)
        stats.mapped = target.length - held - prefix
        stats.repaired = repaired + prefix
        keep = 1 if self._settings.guard is None else repaired
        with stats.stages.stage("repair", self._target.device):
            logits = self._target.logits(at_target[-repaired:], target, keep=keep)
        if self._settings.guard is not None and stats.mapped and repaired > 1:
            with stats.stages.stage("guard", self._source.device):
                own = self._source.logits(at_source[-repaired:], source, keep=repaired)
                stats.guard_difference = difference(logits, own, at_target[-repaired:])
            if stats.guard_difference > self._settings.guard:
                stats.fell_back, stats.mapped, stats.repaired = True, 0, 0
                target.keep(held)
                return self._native(at_target, target, stats)
        return logits[-1:]

    def _map(self, prompt: Tensor, source: Buffer, target: Buffer, stats: Stats) -> None:
        """Map what the source holds; read, move and map the rest chunk by chunk.

        On two devices one chunk is mapped while the next is read.
        """
        ready, stop = min(source.length, len(prompt)), len(prompt)
        warm = (target.length, ready) if target.length < ready else (0, 0)
        spans = list(chunks(*warm, self._settings.chunk))
        spans += chunks(ready, stop, self._settings.chunk)
        room = max((last - first for first, last in spans), default=0)
        landing = Landing(self._link, self._source.side.shape, room, self._source.model.dtype)
        for first, last in spans:
            require(self._wanted)
            if last <= source.length:
                landing.fetch(source, first, last)
            else:
                landing.expect(source)
                with stats.stages.stage("source prefill", self._source.device):
                    self._source.read(prompt[first:last], source)
            with stats.stages.stage("transfer", self._target.device):
                arrived = landing.receive(source, first, last)
            begin = target.length  # a session's target may hold more than its source does
            if begin < last:
                with stats.stages.stage("map", self._target.device):
                    map_into(
                        self._source.side,
                        self._target.side,
                        self._mapper,
                        arrived.select_tokens(slice(begin - first, None)),
                        self._target.positions[begin:last],
                        target.slots(begin, last),
                    )
                target.advance(last - begin)


def chunks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Neighbouring ranges from start to stop, each of at most ``size``; one for size 0."""
    step = size or max(stop - start, 1)
    for first in range(start, stop, step):
        yield first, min(first + step, stop)
