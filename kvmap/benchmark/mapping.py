"""Making the target's KV of a prompt by mapping, against letting the target read it."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from kvmap.benchmark.floors import Work
from kvmap.benchmark.measure import paired_ratio
from kvmap.benchmark.result import ReadOrMap
from kvmap.benchmark.settings import BenchmarkSettings
from kvmap.buffer import Buffer
from kvmap.errors import KVMapError
from kvmap.runtime.answer import Stats
from kvmap.runtime.engine import Engine
from kvmap.runtime.prefill import MappedPrefill, Reading

PROBE = 256  # tokens from whose time the first length's is estimated
SHORT = 5.0  # seconds of a repeat beside which a warm-up of its own is nothing
LEAST = 2


@dataclass(frozen=True)
class Repeat:
    """Seconds of one prompt, read and mapped.

    Attributes:
        read: The target reads it.
        cold: The source reads it, it is mapped and repaired.
        warm: The source has read it; it is mapped and repaired.
        source: The source's part of the cold one.
        map: Transfer and mapping, of the warm one.
        repair: Of the warm one.
    """

    read: float
    cold: float
    warm: float
    source: float
    map: float
    repair: float

    @property
    def all(self) -> float:
        """All three."""
        return self.read + self.cold + self.warm


class Mapping:
    """Times both ways at one length after another, with the runtime's own prefill.

    Args:
        engine: With a mapper; its guard and its threshold for short prompts are left aside.
        settings: Repeats, and how long a length may take.
        context: Tokens that the models were trained on; beyond them the KV is random.
        note: Hears which length is left out and why.

    Raises:
        KVMapError: The engine has no mapper.
    """

    def __init__(
        self,
        engine: Engine,
        settings: BenchmarkSettings,
        context: int,
        note: Callable[[str], None],
    ) -> None:
        if engine.mapper is None:
            raise KVMapError("there is nothing to map with; name an export, or set map_lengths=[]")
        self._engine, self._settings, self._context = engine, settings, context
        self._note = note
        plain = replace(engine.settings, guard=None, native_below=0)
        self._read = Reading(engine.target, plain.chunk)
        self._map = MappedPrefill(engine.source, engine.target, engine.mapper, engine.link, plain)
        self._draw = torch.Generator().manual_seed(settings.seed)
        self._dice = random.Random(settings.seed)
        self._last: tuple[int, float] | None = None

    def at(self, length: int) -> ReadOrMap | None:
        """Measure a length; None where it would take too long or does not fit into memory."""
        expected = self._expected(length)
        if LEAST * expected > self._settings.map_seconds:
            self._note(
                f"mapping against reading at {length} tokens is left out: {LEAST} repeats would "
                f"take about {LEAST * expected:.0f} s, map_seconds={self._settings.map_seconds:g}"
            )
            return None
        try:
            repeats = self._repeats(length, expected)
        except torch.OutOfMemoryError:
            self._note(f"mapping against reading at {length} tokens is left out: out of memory")
            return None
        self._last = (length, repeats[-1].all)

        def ms(read: Callable[[Repeat], float]) -> float:
            return 1000 * median(map(read, repeats))

        reads = [each.read for each in repeats]
        return ReadOrMap(
            length=length,
            repeats=len(repeats),
            random_kv=length > self._context,
            read_ms=ms(lambda each: each.read),
            source_ms=ms(lambda each: each.source),
            map_ms=ms(lambda each: each.map),
            repair_ms=ms(lambda each: each.repair),
            warm=paired_ratio(reads, [each.warm for each in repeats]),
            cold=paired_ratio(reads, [each.cold for each in repeats]),
        )

    def _expected(self, length: int) -> float:
        """Seconds of a repeat: the last length's, by the operations of the target's reading."""
        if self._last is None:
            self._repeat(PROBE)
            self._last = (PROBE, self._repeat(PROBE).all)
        before, seconds = self._last
        now, then = (Work.of(self._engine.target, n, 0, 1, 1).flops for n in (length, before))
        return seconds * now / then

    def _repeats(self, length: int, expected: float) -> Sequence[Repeat]:
        """A warm-up where it could matter, and as many repeats as there is time for."""
        if expected < SHORT:
            self._repeat(length)
        afforded = int(self._settings.map_seconds / max(expected, 1e-9))
        count = min(self._settings.map_repeats, max(afforded, LEAST))
        return [self._repeat(length) for _ in range(count)]

    @torch.no_grad()
    def _repeat(self, length: int) -> Repeat:
        engine = self._engine
        for runner in (engine.source, engine.target):
            runner.reach(length)
        known = len(engine.tokenizer)
        prompt = torch.randint(known, (length,), generator=self._draw)
        read = 0.0
        first = self._dice.random() < 0.5  # who goes first is left to chance
        if first:
            read = self._reading(prompt)
        source, cold, taken = engine.source.buffer(length), Stats("mapped"), Stats("mapped")
        cold_seconds = self._mapping(prompt, source, cold)
        if length > self._context:
            for part in source.slots(0, source.length):
                part.normal_()
        warm_seconds = self._mapping(prompt, source, taken)
        if not first:
            read = self._reading(prompt)
        stages = taken.stages.seconds
        return Repeat(
            read=read,
            cold=cold_seconds,
            warm=warm_seconds,
            source=cold.stages.seconds.get("source prefill", 0.0),
            map=stages.get("transfer", 0.0) + stages.get("map", 0.0),
            repair=stages["repair"],
        )

    def _reading(self, prompt: Tensor) -> float:
        ids = prompt.to(self._engine.target.device)
        buffer = self._engine.target.buffer(len(prompt))
        return self._seconds(lambda: self._read(ids, buffer, Stats("target")))

    def _mapping(self, prompt: Tensor, source: Buffer, stats: Stats) -> float:
        ids, buffer = prompt.tolist(), self._engine.target.buffer(len(prompt))
        return self._seconds(lambda: self._map(ids, source, buffer, stats))

    def _seconds(self, logits: Callable[[], Tensor]) -> float:
        """From idle devices to the first token."""
        for runner in (self._engine.source, self._engine.target):
            if runner.device.type == "cuda":
                torch.cuda.synchronize(runner.device)
        started = time.perf_counter()
        logits().argmax().item()
        return time.perf_counter() - started
