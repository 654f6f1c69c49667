"""Ways of answering a prompt, each timed alike."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from kvmap.runtime.answer import Stats
from kvmap.runtime.engine import Engine
from kvmap.runtime.options import Mode, Options


@dataclass(frozen=True)
class Timing:
    """One answer.

    Attributes:
        ttft: Seconds to the first token.
        latency: Seconds to the last.
        tokens: Generated tokens.
        stats: The engine's own account; None for other programs.
    """

    ttft: float
    latency: float
    tokens: tuple[int, ...]
    stats: Stats | None = None

    @property
    def tpot(self) -> float:
        """Seconds per token after the first."""
        return (self.latency - self.ttft) / max(len(self.tokens) - 1, 1)


class Arm(ABC):
    """One way of answering.

    Args:
        name: In tables.
    """

    def __init__(self, name: str) -> None:
        self.name = name

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
        super().__init__(name)
        self._engine, self._mode, self._warm = engine, mode, warm

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Timing:
        """Answer, from a cold start or after the source."""
        options = Options(new_tokens, ignore_eos=True, mode=self._mode, reuse=self._warm)
        if self._warm:
            self._engine.generate(prompt, Options(1, mode="source"))
        answer = self._engine.generate(prompt, options)
        self._engine.forget()
        return Timing(answer.stats.ttft, answer.stats.latency, answer.tokens, answer.stats)


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
        super().__init__(name)
        self._model, self._assistant = model, assistant
        for each in (model, assistant):
            if each is not None and each.generation_config is not None:
                each.generation_config.eos_token_id = None  # so that every answer is as long

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
        return Timing(clock.at[1] - started, time.perf_counter() - started, tokens)
