"""What kvmap is worth on the cards at hand: right first, then fast.

    python benchmarks/gpu.py [--device cuda:0 [cuda:1]] [--out outputs/gpu.json]

First the runtime's invariants in float32. Then, with random weights in the shapes of Qwen3-4B and
Qwen3-32B in bfloat16, a prompt of 8,192 tokens: native prefill beside source prefill, transfer,
map and repair; decoding steps as forwards and at fixed shape; verification of blocks; and the
speed that all this allows at acceptances that are assumed, since random weights have none. Tables
are printed in Markdown and kept in JSON as far as they have come. The source runs on the first
device, the target on the last. ``--device cpu --tiny`` tries the same code in seconds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from gpu_checks import Checks
from gpu_clock import GIB, Clock, Memory
from gpu_report import Cell, Report, Table
from random_models import (
    QWEN3_4B,
    QWEN3_32B,
    TINY_SOURCE,
    TINY_TARGET,
    RandomSide,
    random_ridge,
    ridge_bytes,
)
from torch import Tensor
from transformers import PretrainedConfig

from kvmap.benchmark.floors import Rates, Work, stage_work
from kvmap.mappers.base import Mapper
from kvmap.mappers.reading import CHUNK_ROWS
from kvmap.provenance import Provenance
from kvmap.runtime import attention
from kvmap.runtime.answer import Stats
from kvmap.runtime.prefill import MappedPrefill, Reading
from kvmap.runtime.runner import Runner
from kvmap.runtime.settings import Repair, Settings
from kvmap.runtime.step import ROOM, Step, Way
from kvmap.runtime.transfer import Link

REPAIR = 32
BLOCKS = (4, 8, 16, 24)
ACCEPTANCES = (0.6, 0.7, 0.8)
MS = 1e3


@dataclass(frozen=True)
class Scale:
    """How large all is.

    Attributes:
        source: The source's shape.
        target: The target's.
        names: What they are called.
        dtype: Of weights and KV.
        prompt: Tokens.
        ks: Source layers that a target layer reads.
        chunks: Tokens that are read, moved and mapped at a time; 0 for all.
        repeats: Measurements, after one that warms up.
        steps: Decoding steps in a measurement.
        minutes: After so many no further part is begun.
    """

    source: PretrainedConfig
    target: PretrainedConfig
    names: tuple[str, str]
    dtype: torch.dtype
    prompt: int
    ks: tuple[int, ...]
    chunks: tuple[int, ...]
    repeats: int
    steps: int
    minutes: float = 6.5


REAL = Scale(
    QWEN3_4B, QWEN3_32B, ("Qwen3-4B", "Qwen3-32B"), torch.bfloat16, 8192, (1, 8), (0, 2048), 5, 16
)
TINY = Scale(TINY_SOURCE, TINY_TARGET, ("tiny", "small"), torch.float32, 96, (1, 2), (0, 40), 2, 2)


@dataclass
class Measured:
    """Seconds that the last table is made of."""

    draft: dict[str, float] = field(default_factory=dict)  # by way of stepping
    target: dict[str, float] = field(default_factory=dict)
    verify: dict[int, float] = field(default_factory=dict)  # by tokens proposed


class Bench:
    """The models, and everything that is measured with them.

    Args:
        scale: How large.
        source: The source's device.
        target: The target's device.
        report: Where results go.
    """

    def __init__(
        self, scale: Scale, source: torch.device, target: torch.device, report: Report
    ) -> None:
        self.scale, self.report = scale, report
        self.devices = (source, target)
        self.memory = Memory(self.devices)
        self.sides = (
            RandomSide(scale.source, scale.dtype, source),
            RandomSide(scale.target, scale.dtype, target),
        )
        self.measured = Measured()
        draw = torch.Generator().manual_seed(0)
        self.prompt = torch.randint(1, 500, (scale.prompt,), generator=draw).tolist()
        self.fixed: Way = "captured" if target.type == "cuda" else "eager"

    # What it costs in memory, before anything is allocated.

    def lasting(self) -> dict[torch.device, int]:
        """Bytes by device of models and caches, the latter twice: for prefill and for decoding."""
        needed = dict.fromkeys(self.devices, 0)
        for side, device in zip(self.sides, self.devices, strict=True):
            cache = (self.scale.prompt + ROOM) * side.shape.bytes_per_token(side.dtype)
            needed[device] += side.weight_bytes + 2 * cache
        return needed

    def passing(self, k: int = 0, chunk: int = 0) -> dict[torch.device, int]:
        """Bytes by device that reading takes meanwhile, and mapping where k is not 0."""
        tokens, (source, target) = chunk or self.scale.prompt, self.sides
        needed = dict.fromkeys(self.devices, 0)
        for side, device in zip(self.sides, self.devices, strict=True):
            wide = side.config.intermediate_size + 4 * side.config.hidden_size
            needed[device] = max(needed[device], 3 * tokens * wide * side.dtype.itemsize)
        if k:
            mapped = tokens * target.shape.bytes_per_token(torch.float32)
            gathered = min(CHUNK_ROWS, tokens) * target.shape.layers * k * source.shape.width
            mapper = ridge_bytes(source.shape, target.shape, k, self.scale.dtype)
            landed = tokens * source.shape.bytes_per_token(source.dtype)
            needed[self.devices[1]] += 3 * mapped + landed + mapper
            needed[self.devices[1]] += gathered * self.scale.dtype.itemsize
        return needed

    def make_models(self) -> bool:
        """Make both models where there is room."""
        meanwhile = self.passing()
        needed = {device: taken + meanwhile[device] for device, taken in self.lasting().items()}
        if missing := self.memory.missing(needed):
            self.report.leave_out(f"all speed, since it {missing}")
            return False
        started, self.runners = time.perf_counter(), []
        table = Table(
            f"Models with random weights in {str(self.scale.dtype).removeprefix('torch.')}",
            ("role", "shape of", "device", "billion weights", "GiB", "KV KiB/token", "made in s"),
        )
        names = zip(("source", "target"), self.scale.names, self.sides, self.devices, strict=True)
        for role, name, side, device in names:
            self.runners.append(Runner(side, side.config.vocab_size))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            took, started = time.perf_counter() - started, time.perf_counter()
            per_token = side.shape.bytes_per_token(side.dtype) / 1024
            table.rows.append(
                (
                    role,
                    name,
                    str(device),
                    side.weights / 1e9,
                    side.weight_bytes / GIB,
                    per_token,
                    took,
                )
            )
        self.source, self.target = self.runners
        self.link = Link(*self.devices)
        self.link.self_test()
        self.clock = Clock(self.devices[1], self.devices[0])
        self.report.add(table)
        return True

    def rates(self) -> None:
        """What the devices reach at best."""
        self.best = {each: Rates.measure(each, self.scale.dtype) for each in self.devices}
        table = Table("Rates of the devices", ("device", "what", "rate", "unit"))
        for device, rates in self.best.items():
            table.rows.append((str(device), "large matrix product", rates.flops / 1e12, "TFLOP/s"))
            table.rows.append(
                (str(device), "copy, read and written counted", rates.bytes / 1e9, "GB/s")
            )
        link = Link(*self.devices, force=True)
        size = GIB // 4 if self.devices[0].type == "cuda" else 2**20
        much = torch.empty(size, dtype=torch.uint8, device=self.devices[0])
        into = torch.empty(size, dtype=torch.uint8, device=self.devices[1])
        clock = Clock(self.devices[1], self.devices[0])
        for name, link.staged in (("direct", False), ("through the host", True)):

            def send() -> None:
                link.send(much, into)
                link.receive()

            rate = size / clock.median(send, 3) / 1e9
            table.rows.append(
                (f"{self.devices[0]} to {self.devices[1]}", f"transfer, {name}", rate, "GB/s")
            )
        self.report.add(table)

    # Prefill.

    @torch.no_grad()
    def prefill(self) -> None:
        """Native prefill beside mapping and repair."""
        scale, prompt = self.scale, self.scale.prompt
        table = Table(
            f"First token of a prompt of {prompt:,} tokens, repair {REPAIR}",
            ("way", "chunk", "cold", "native / cold", "warm", "native / warm", "peak GiB"),
            note="Cold reads the prompt with the source; warm finds the source's cache there.",
        )
        stages = Table(
            "Stages of it",
            ("way", "stage", "ms", "TFLOP", "GB", "of product rate", "of copy rate", "floor ms",
             "floor / measured"),
            note="Stages that overlap add up to more than the whole. Bytes are the least that must "
            "move: weights once, KV read and written.",
        )  # fmt: skip
        self.target_buffer = self.target.buffer(prompt + ROOM)
        self.source_buffer = self.source.buffer(prompt + ROOM)
        native = self._native(table, stages)
        for k in scale.ks:
            for chunk in scale.chunks:
                if missing := self.memory.missing(self.passing(k, chunk)):
                    self.report.leave_out(
                        f"mapping with k={k} and chunk={chunk}, since it {missing}"
                    )
                else:
                    self._mapped(k, chunk, native, table, stages)
        self.report.add(table)
        self.report.add(stages)

    def _native(self, table: Table, stages: Table) -> float:
        ids = torch.tensor(self.prompt, device=self.devices[1])
        taken: list[Stats] = []
        self.memory.restart()

        def read() -> None:
            self.target_buffer.keep(0)
            taken.append(Stats("target", prompt=len(ids)))
            Reading(self.target, 0)(ids, self.target_buffer, taken[-1])

        seconds = self.clock.median(read, self.scale.repeats)
        table.rows.append(("native", 0, MS * seconds, 1.0, None, None, self.memory.peak()))
        self._stages("native", taken[1:], None, stages)
        return seconds

    def _mapped(self, k: int, chunk: int, native: float, table: Table, stages: Table) -> None:
        source, target = self.sides
        self.memory.restart()
        mapper = random_ridge(source.shape, target.shape, k, self.scale.dtype, self.devices[1])
        settings = Settings(repair=Repair(REPAIR), chunk=chunk)
        answer = MappedPrefill(self.source, self.target, mapper, self.link, settings)
        cold: list[Stats] = []

        def begin(held: int, taken: list[Stats]) -> None:
            self.source_buffer.keep(min(held, self.source_buffer.length))
            self.target_buffer.keep(0)
            taken.append(Stats("mapped", prompt=len(self.prompt)))
            answer(self.prompt, self.source_buffer, self.target_buffer, taken[-1])

        seconds = self.clock.median(lambda: begin(0, cold), self.scale.repeats)
        held = self.source_buffer.length
        warm = self.clock.median(lambda: begin(held, []), self.scale.repeats)
        name = f"mapped, k={k}"
        row = (name, chunk, MS * seconds, native / seconds, MS * warm, native / warm)
        table.rows.append((*row, self.memory.peak()))
        if chunk == 0:
            self._stages(name, cold[1:], mapper, stages)

    def _stages(
        self, way: str, taken: Sequence[Stats], mapper: Mapper | None, table: Table
    ) -> None:
        stats = taken[-1]
        work = stage_work(stats, self.source, self.target, mapper)
        if not self.link.local:
            moved = stats.mapped * self.sides[0].shape.bytes_per_token(self.scale.dtype)
            work["transfer"] = Work(0, moved)
        for stage in stats.stages.seconds:
            seconds = median(each.stages.seconds[stage] for each in taken)
            if stage not in work:
                table.rows.append((way, stage, MS * seconds, *[None] * 6))
                continue
            on_source = stage in ("source prefill", "transfer")
            rates = self.best[self.devices[0 if on_source else 1]]
            table.rows.append((way, stage, *self._shares(work[stage], seconds, rates)))

    @staticmethod
    def _shares(work: Work, seconds: float, rates: Rates) -> tuple[Cell, ...]:
        """ms, TFLOP, GB, share of the product rate, of the copy rate, floor, share of it."""
        floor = rates.floor(work.flops, work.bytes)
        return (
            MS * seconds,
            work.flops / 1e12,
            work.bytes / 1e9,
            _percent(work.flops / seconds / rates.flops),
            _percent(work.bytes / seconds / rates.bytes),
            MS * floor,
            _percent(floor / seconds),
        )

    # Decoding.

    @torch.no_grad()
    def decode(self) -> None:
        """Single tokens behind the prompt, as forwards and as steps of fixed shape."""
        held = self.scale.prompt
        table = Table(
            f"Decoding steps behind {held:,} tokens",
            ("model", "way", "ms", "TFLOP", "GB", "of product rate", "of copy rate", "floor ms",
             "floor / measured"),
            note=f"Mean of {self.scale.steps} steps in a row; no token comes to the host.",
        )  # fmt: skip
        for name, runner in zip(self.scale.names, self.runners, strict=True):
            kept = self.measured.draft if runner is self.source else self.measured.target
            clock, ids = Clock(runner.device), torch.tensor(self.prompt, device=runner.device)
            work = Work.of(runner, 1, held, 1, 1)
            for way in ("forward", self.fixed):
                try:
                    kept[way] = self._step(runner, way, clock, ids)
                except Exception as error:  # the other way is still worth knowing
                    self.report.fail(f"{name}, {way}", error)
                    continue
                finally:
                    runner.step = None
                shares = self._shares(work, kept[way], self.best[runner.device])
                table.rows.append((name, f"{way} step" if way != "forward" else way, *shares))
        self.report.add(table)

    def _step(self, runner: Runner, way: str, clock: Clock, ids: Tensor) -> float:
        """Seconds of a step, mean over some in a row."""
        held = self.scale.prompt
        if way != "forward":
            runner.step = Step(runner.model, runner._by_kind, self.fixed)
        buffer = runner.buffer(held + ROOM)
        buffer.advance(held)  # zeros are as good as anything

        def steps() -> None:
            buffer.keep(held)
            for at in range(self.scale.steps):
                runner.logits(ids[at, None], buffer, keep=1)

        return clock.median(steps, self.scale.repeats, self.scale.steps)

    @torch.no_grad()
    def verify(self) -> None:
        """Blocks behind the prompt, each with the committed token before it."""
        held, runner = self.scale.prompt, self.target
        table = Table(
            f"Verifying a block behind {held:,} tokens",
            ("proposed", "ms", "TFLOP", "GB", "of product rate", "of copy rate", "floor ms",
             "floor / measured", "c, forward", f"c, {self.fixed}"),
            note="c is the time of a draft step over the time of this verification.",
        )  # fmt: skip
        ids = torch.tensor(self.prompt, device=runner.device)
        buffer, times = runner.buffer(held + ROOM), 4
        buffer.advance(held)
        for block in BLOCKS:

            def judge(block: int = block) -> None:
                for _ in range(times):
                    buffer.keep(held)
                    runner.logits(ids[: block + 1], buffer, keep=block + 1)

            seconds = Clock(runner.device).median(judge, self.scale.repeats, times)
            self.measured.verify[block] = seconds
            work = Work.of(runner, block + 1, held, 1, block + 1)
            shares = self._shares(work, seconds, self.best[runner.device])
            ratios = (self.measured.draft.get(way) for way in ("forward", self.fixed))
            table.rows.append((block, *shares, *(each and each / seconds for each in ratios)))
        self.report.add(table)

    def implied(self) -> None:
        """Tokens per second at assumed acceptance, from what was measured."""
        draft, target = self.measured.draft, self.measured.target
        table = Table(
            "Implied speed of decoding, tokens/s",
            ("accepted", "draft step", *(f"block {block}" for block in BLOCKS), "best",
             "alone, forward", f"alone, {self.fixed}", "best / best alone"),
            note="A block of b with acceptance a gives (1 - a^(b+1)) / (1 - a) tokens for b draft "
            "steps and one verification. Choosing tokens and the way to the host are not in it; "
            "acceptance is assumed, the weights being random.",
        )  # fmt: skip
        alone = [1 / target[way] if way in target else None for way in ("forward", self.fixed)]
        for share in ACCEPTANCES:
            for way, step in draft.items():
                speeds = [
                    (1 - share ** (block + 1)) / (1 - share) / (block * step + seconds)
                    for block, seconds in self.measured.verify.items()
                ]
                ratio = max(speeds) / max(each for each in alone if each)
                table.rows.append((share, way, *speeds, max(speeds), *alone, ratio))
        self.report.add(table)

    @torch.no_grad()
    def attention(self) -> None:
        """One query over one layer's cache, in the three ways there are."""
        device, held = self.devices[1], self.scale.prompt
        capacity = held + ROOM + -held % ROOM
        table = Table(
            f"Attention of one token over {held:,} in one layer, microseconds",
            (
                "model",
                "fused, no mask",
                "fused under a mask",
                "in parts under a mask",
                "copy floor",
            ),
            note=f"Under a mask all {capacity:,} slots are read; steps of fixed shape need one.",
        )
        mask = (torch.arange(capacity, device=device) < held)[None, None, None]
        for name, side in zip(self.scale.names, self.sides, strict=True):
            shape, times = side.shape, 20
            query = torch.randn(1, side.query_heads, 1, shape.head_dim, device=device)
            query = query.to(self.scale.dtype)
            key, value = (
                torch.randn(1, shape.heads, capacity, shape.head_dim, device=device).to(query.dtype)
                for _ in range(2)
            )
            # Folded by hand: on a GPU ``grouped`` itself goes in parts under such a mask.
            folded = query.view(1, shape.heads, -1, shape.head_dim)
            rows = mask.repeat(1, 1, folded.shape[2], 1)
            held_key, held_value = key[:, :, :held], value[:, :, :held]
            ways = (
                partial(F.scaled_dot_product_attention, folded, held_key, held_value),
                partial(F.scaled_dot_product_attention, folded, key, value, attn_mask=rows),
                partial(attention.split, query, key, value, mask, None),
            )
            times_us = [
                1e6 * Clock(device).median(_repeated(way, times), self.scale.repeats, times)
                for way in ways
            ]
            floor = 1e6 * (key.nbytes + value.nbytes) / self.best[device].bytes
            table.rows.append((name, *times_us, floor))
        self.report.add(table)


def _repeated(work: Callable[[], object], times: int) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(times):
            work()

    return repeat


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "processor"


def environment(*devices: torch.device) -> dict[str, object]:
    """The cards and the software."""
    cuda = [each for each in dict.fromkeys(devices) if each.type == "cuda"]
    total = {str(each): torch.cuda.get_device_properties(each).total_memory for each in cuda}
    return {
        "devices": {str(each): _name(each) for each in devices},
        "memory_bytes": total,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "threads": torch.get_num_threads(),
        **asdict(Provenance()),
    }


def parts(bench: Bench) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured, in order."""
    yield "rates", bench.rates
    yield "prefill", bench.prefill
    yield "decoding steps", bench.decode
    yield "verification", bench.verify
    yield "implied speed", bench.implied
    yield "attention", bench.attention


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure, print; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", nargs="+", help="one or two (default: the first two cards)")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to try the code")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu.json"))
    asked = parser.parse_args(arguments)
    if not asked.device and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --device cpu --tiny tries the code without one")
    names = asked.device or [f"cuda:{i}" for i in range(min(torch.cuda.device_count(), 2))]
    source, target = (
        torch.device("cuda:0" if names[place] == "cuda" else names[place]) for place in (0, -1)
    )
    scale = TINY if asked.tiny else REAL
    report = Report(asked.out, environment(source, target))
    made = Provenance()
    cards = {device: _name(device) for device in (source, target)}
    print("# " + ", ".join(f"{name} ({device})" for device, name in cards.items()) + "\n")
    versions = {"CUDA": torch.version.cuda, **made.versions, "Python": made.python}
    print(", ".join(f"{name} {version}" for name, version in versions.items()))

    table = Table("Invariants in float32", ("invariant", "holds", "seen"))
    for check in Checks(source, target, "eager").run():
        report.checks.append(check)
        table.rows.append((check.name, "yes" if check.passed else "NO", check.detail))
        _say(f"{check.name}: {'holds' if check.passed else 'DOES NOT HOLD'}", report)
    report.add(table)

    bench = Bench(scale, source, target, report)
    if bench.make_models():
        for name, part in parts(bench):
            if report.seconds > 60 * scale.minutes:
                report.leave_out(f"{name}, since {scale.minutes} minutes are over")
                continue
            _say(name, report)
            try:
                part()
            except Exception as error:  # what was measured before is worth keeping
                report.fail(name, error)
    print(f"\n{report.seconds:.0f} s in all; {asked.out} holds the numbers.")
    report.save()
    return 1 if report.failed or not all(each.passed for each in report.checks) else 0


def _say(what: str, report: Report) -> None:
    print(f"[{report.seconds:6.1f} s] {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
