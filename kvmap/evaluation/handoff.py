"""Source and target take turns in a conversation, each with what the other's cache gave it.

A speaker reads its turn over its own cache. What it has not read itself comes from the other model
through the mapper, the last ``repair`` tokens of it recomputed. The same turn read by the same
model after reading all of the conversation itself is the score that the handoffs are held against.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import Cache

from kvmap import cache as caches
from kvmap.evaluation.arms import Answerer, Arm
from kvmap.evaluation.models import Models
from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair
from kvmap.runtime.mapped import map_rotated

Mode = Literal["new tokens", "everything"]


@dataclass(frozen=True)
class ConversationScore:
    """One conversation, by turn from the second on.

    Attributes:
        mapped: Nats/token of each turn.
        native: The same model's own.
        received: Tokens that came from the other model.
    """

    mapped: list[float]
    native: list[float]
    received: list[int]


@dataclass
class _Speaker:
    """A model and what it holds of the conversation."""

    kind: Answerer
    incoming: Mapper | None
    kv: KV | None = None
    held: int = 0


class Conversation:
    """Two models in turns, the source first.

    Args:
        models: The pair.
        mapper: From source to target.
        reverse: From target to source; without one the source reads the target's turns itself.
        repair: r, of the tokens received in a turn.
        mode: Whether only new tokens are mapped, or everything at each turn.
        turn_tokens: Tokens of a turn.
    """

    def __init__(
        self,
        models: Models,
        mapper: Mapper,
        reverse: Mapper | None,
        repair: int,
        mode: Mode,
        turn_tokens: int,
    ) -> None:
        self.models, self.mapper, self.reverse = models, mapper, reverse
        self.repair, self.mode, self.turn_tokens = repair, mode, turn_tokens
        self.back = reversed_pair(models.pair)

    @torch.no_grad()
    def play(self, ids: Tensor) -> list[ConversationScore]:
        """Conversations ``[B, T]`` of whole turns, side by side."""
        speakers = [_Speaker("source", self.reverse), _Speaker("target", self.mapper)]
        native = {kind: self._native(kind, ids) for kind in ("source", "target")}
        mapped, own, received = [], [], []
        for turn in range(ids.shape[1] // self.turn_tokens):
            speaker, other = speakers[turn % 2], speakers[1 - turn % 2]
            start = turn * self.turn_tokens
            end = start + self.turn_tokens
            new = start if self.mode == "everything" and speaker.incoming else start - speaker.held
            losses = self._speak(speaker, other, ids, start, end)
            if turn:
                mapped.append(losses.mean(1))
                own.append(native[speaker.kind][:, start - 1 : end - 1].mean(1))
                received.append(new if speaker.incoming else 0)
        by_conversation = zip(torch.stack(mapped, 1), torch.stack(own, 1), strict=True)
        return [ConversationScore(m.tolist(), n.tolist(), received) for m, n in by_conversation]

    def _speak(
        self, speaker: _Speaker, other: _Speaker, ids: Tensor, start: int, end: int
    ) -> Tensor:
        """Losses ``[B, turn]`` of a turn; the speaker then holds everything up to its end."""
        begin = speaker.held
        cache = caches.write(speaker.kv) if speaker.kv is not None else caches.empty()
        if speaker.incoming is not None and start > 0 and other.kv is not None:
            first = 0 if self.mode == "everything" else speaker.held
            begin = start - Arm("mapped", self.repair).repaired_tail(start - first)
            before = speaker.kv if first else None
            if begin > first:
                before = joined(before, self._map(speaker, other.kv, first, begin))
            cache = caches.write(before) if before is not None else caches.empty()
        losses = self._read(speaker.kind, ids, begin, end, cache)
        speaker.kv, speaker.held = caches.read(cache), end
        return losses[:, -(end - max(start, 1)) :]

    def _map(self, speaker: _Speaker, kv: KV, first: int, stop: int) -> KV:
        """The speaker's KV of tokens ``first`` to ``stop`` from the other's."""
        pair = self.models.pair if speaker.kind == "target" else self.back
        device = self.models.of(speaker.kind).device
        part = kv.select_tokens(slice(first, stop)).to(device)
        assert speaker.incoming is not None
        positions = torch.arange(first, stop, device=device)
        return map_rotated(pair, speaker.incoming.to(device), part, positions)

    def _read(self, kind: Answerer, ids: Tensor, begin: int, end: int, cache: Cache) -> Tensor:
        """Losses of tokens ``begin + 1`` to ``end - 1``, read after a cache, which grows."""
        model = self.models.of(kind)
        device = model.device
        positions = torch.arange(begin, end, device=device)
        logits = caches.forward(model, ids[:, begin:end].to(device), cache, positions)
        said = logits[:, :-1, : self.models.vocabulary].float().log_softmax(-1)
        return -said.gather(2, ids[:, begin + 1 : end, None].to(device))[..., 0].cpu()

    def _native(self, kind: Answerer, ids: Tensor) -> Tensor:
        """Losses ``[B, T - 1]`` of the model that reads everything itself."""
        return self._read(kind, ids, 0, ids.shape[1], caches.empty())


def joined(before: KV | None, after: KV) -> KV:
    """KV of tokens, then of those that follow."""
    if before is None:
        return after
    return KV(*(torch.cat(parts, dim=3) for parts in zip(before, after, strict=True)))


def reversed_pair(pair: ModelPair) -> ModelPair:
    """The pair in the other direction."""
    return ModelPair(pair.name, pair.target.spec, pair.source.spec)
