"""The least time that a stage can take on this machine: its products and its bytes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from kvmap.mappers.base import Mapper
from kvmap.pair import Side
from kvmap.runtime.answer import Stats
from kvmap.runtime.runner import Runner

LARGE = {"cpu": (2048, 2**26), "cuda": (8192, 2**30)}
"""Rows of a product and bytes of a copy beside whose times starting them is nothing."""


@dataclass(frozen=True)
class Rates:
    """What a device reaches at best, measured.

    Attributes:
        flops: Floating point operations per second of a large matrix product.
        bytes: Bytes per second of a large copy, read and written both counted.
    """

    flops: float
    bytes: float

    @classmethod
    def measure(cls, device: torch.device, dtype: torch.dtype, size: int | None = None) -> "Rates":
        """Time a square product, of ``size`` rows, and a copy, large enough for the device."""
        rows, bytes_ = LARGE.get(device.type, LARGE["cpu"])
        size = size or rows
        left = torch.randn(size, size, device=device).to(dtype)
        much = torch.empty(bytes_, dtype=torch.uint8, device=device)
        into = torch.empty_like(much)
        product = _best(lambda: left @ left, device)
        copy = _best(lambda: into.copy_(much), device)
        return cls(2 * size**3 / product, 2 * much.nbytes / copy)

    def floor(self, flops: float, bytes_: float) -> float:
        """Seconds that neither can undercut."""
        return max(flops / self.flops, bytes_ / self.bytes)


def _best(call: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


@dataclass(frozen=True)
class Work:
    """What reading tokens costs a model.

    Attributes:
        flops: Of the layers and, for ``logits`` positions, of the output.
        bytes: Weights once for every forward, and KV read and written.
    """

    flops: float
    bytes: float

    @classmethod
    def of(cls, runner: Runner, tokens: int, held: int, forwards: int, logits: int) -> "Work":
        """Of reading tokens behind those held, in so many forwards.

        Args:
            runner: The model.
            tokens: Tokens read.
            held: Tokens in the cache before.
            forwards: Forwards that they are read in.
            logits: Positions whose logits are computed.
        """
        model, side = runner.model, runner.side
        output = cast(nn.Linear, model.get_output_embeddings()).weight
        embedding = cast(nn.Embedding, model.get_input_embeddings()).weight
        tied = output.data_ptr() == embedding.data_ptr()
        every = sum(weight.numel() for weight in model.parameters())
        layers = every - embedding.numel() - (0 if tied else output.numel())
        seen = tokens * held + tokens * (tokens + 1) / 2  # pairs of query and key
        attention = 4 * seen * side.shape.layers * side.query_heads * side.shape.head_dim
        per_token = side.shape.bytes_per_token(model.dtype)
        read = forwards * (layers + output.numel() * bool(logits)) * model.dtype.itemsize
        read += per_token * (forwards * held + tokens)
        return cls(2 * layers * tokens + 2 * output.numel() * logits + attention, read)


def stage_work(
    stats: Stats, source: Runner, target: Runner, mapper: Mapper | None
) -> dict[str, Work]:
    """What the stages of an answer take, by stage.

    Decoding is counted at the prompt's length plus half of what was generated.
    """
    work: dict[str, Work] = {}
    held = stats.prompt + stats.generated // 2
    if stats.prefilled:
        reader = source if stats.mode == "source" else target
        work["prefill"] = Work.of(reader, stats.prefilled, stats.reused, 1, 1)
    if stats.mapped and mapper is not None:
        read = stats.mapped - stats.warm
        if read > 0:
            work["source prefill"] = Work.of(source, read, stats.reused + stats.warm, 1, 0)
        bytes_ = _kv_bytes(source.side, target.side) * stats.mapped
        weights = sum(each.nbytes for each in mapper.state_dict().values())
        work["map"] = Work(2 * mapper.weights * stats.mapped, bytes_ + weights)
    if stats.repaired:
        before = stats.prompt - stats.repaired
        work["repair"] = Work.of(target, stats.repaired, before, 1, 1)
    if stats.proposed:
        work["draft"] = Work.of(source, stats.proposed, held, stats.proposed, stats.proposed)
    rounds = len(stats.blocks) or stats.generated - 1
    if rounds > 0:
        judged = stats.proposed + rounds
        answering = source if stats.mode == "source" else target
        work["verify"] = Work.of(answering, judged, held, rounds, judged)
    return work


def stage_floors(
    stats: Stats, source: Runner, target: Runner, mapper: Mapper | None, rates: Rates
) -> dict[str, float]:
    """Seconds below which the stages of an answer cannot go, by stage."""
    work = stage_work(stats, source, target, mapper)
    return {stage: rates.floor(each.flops, each.bytes) for stage, each in work.items()}


def _kv_bytes(source: Side, target: Side) -> int:
    """Bytes per token that mapping reads and writes."""
    return sum(side.shape.bytes_per_token(side.dtype) for side in (source, target))
