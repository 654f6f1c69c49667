"""Ways of answering a prompt, each timed alike."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from kvmap.benchmark.result import Role
from kvmap.errors import KVMapError
from kvmap.runtime import attention
from kvmap.runtime.answer import Stats
from kvmap.runtime.engine import Engine
from kvmap.runtime.options import Mode, Options


@dataclass(frozen=True)
class Timing:
    """One answer.

    Attributes:
        ttft: Seconds to the first token.
        latency: Seconds to the last.
        generated: Number of generated tokens.
        tokens: Which; empty where another program does not tell.
        stats: The engine's own account; None for other programs.
    """

    ttft: float
    latency: float
    generated: int
    tokens: tuple[int, ...] = ()
    stats: Stats | None = None

    @property
    def tpot(self) -> float:
        """Seconds per token after the first."""
        return (self.latency - self.ttft) / max(self.generated - 1, 1)

    @property
    def throughput(self) -> float:
        """Generated tokens per second of the whole."""
        return self.generated / self.latency


class Arm(ABC):
    """One way of answering.

    Args:
        name: In tables.
        role: What it is.
    """

    def __init__(self, name: str, role: Role) -> None:
        self.name, self.role = name, role

    @abstractmethod
    def answer(self, prompt: Sequence[int], new_tokens: int) -> Timing:
        """Answer greedily with exactly so many tokens."""


class EngineArm(Arm):
    """Through our engine.

    Args:
        name: In tables.
        engine: Which.
        mode: How.
        warm: The source has answered the prompt's beginning itself, so that its cache is there.
    """

    def __init__(self, name: str, engine: Engine, mode: Mode, warm: bool = False) -> None:
        roles: dict[Mode, Role] = {"mapped": "cold", "target": "target", "source": "source"}
        super().__init__(name, "warm" if warm else roles[mode])
        self._engine, self._mode, self._warm = engine, mode, warm

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Timing:
        """Answer, from a cold start or after the source.

        Raises:
            KVMapError: The source's cache was not kept, so that there is no warm start.
        """
        options = Options(new_tokens, ignore_eos=True, mode=self._mode, reuse=self._warm)
        if self._warm:
            self._engine.generate(prompt, Options(1, mode="source"))
        answer = self._engine.generate(prompt, options)
        self._engine.forget()
        stats = answer.stats
        if self._warm and len(prompt) > 1 and stats.mapped and not stats.warm:
            raise KVMapError(
                f"the source's cache of {len(prompt)} tokens is larger than runtime.session_bytes="
                f"{self._engine.settings.session_bytes}, so there is no warm start; raise it"
            )
        return Timing(stats.ttft, stats.latency, len(answer.tokens), answer.tokens, stats)


@dataclass
class _Clock(BaseStreamer):
    """Notes when transformers hands tokens out; the prompt comes first."""

    at: list[float] = field(default_factory=list)

    def put(self, value: Any) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is left to hand out."""


class GenerateArm(Arm):
    """Through transformers' ``generate``, alone or assisted.

    Weights are shared with the models that are given; attention is transformers' own.

    Args:
        name: In tables.
        model: Who answers.
        assistant: Who drafts, with transformers' own schedule.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        assistant: PreTrainedModel | None = None,
    ) -> None:
        super().__init__(name, "generate" if assistant is None else "assisted")
        self._model = _untouched(model)
        self._assistant = None if assistant is None else _untouched(assistant)

    @torch.no_grad()
    def answer(self, prompt: Sequence[int], new_tokens: int) -> Timing:
        """Answer from a cold start."""
        clock, started = _Clock(), time.perf_counter()
        ids = torch.tensor([list(prompt)], device=self._model.device)
        out = self._model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            assistant_model=self._assistant,
            streamer=clock,
        )
        tokens = tuple(out[0, len(prompt) :].tolist())
        latency = time.perf_counter() - started
        return Timing(clock.at[1] - started, latency, len(tokens), tokens)


def _untouched(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights under a model as transformers loads it, that no end token ends."""
    kept = {id(each): each for each in chain(model.parameters(), model.buffers())}
    twin = deepcopy(model, kept)
    if twin.config._attn_implementation == attention.NAME:
        twin.set_attn_implementation("sdpa")
    if twin.generation_config is not None:
        twin.generation_config.eos_token_id = None  # so that every answer is as long
    return twin
