"""What the models make of some tokens, computed when first asked for and shared by all arms.

A causal model's KV of a prompt is the beginning of its KV of any longer text, and a mapper works
token by token: one reading of a whole passage serves every prompt that ends inside it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kvmap import cache as caches
from kvmap.evaluation.arms import Answerer, Arm
from kvmap.evaluation.models import Models, NamedMapper
from kvmap.kv import KV


class Reading(NamedTuple):
    """A model's own reading of tokens.

    Attributes:
        kv: Rotated KV ``[L, 1, H, T, D]``.
        logits: ``[scored, V]`` at the positions that are scored, in float32 on the CPU.
    """

    kv: KV
    logits: Tensor


class Prompt:
    """Tokens and what the models make of them.

    Args:
        models: The pair.
        ids: ``[T]`` tokens, on the CPU.
        scored: Positions whose next-token logits are wanted of the models' own readings, ascending.

    Attributes:
        written: What the first arm wrote after it: a good guess for the others, no more.
    """

    def __init__(self, models: Models, ids: Tensor, scored: Tensor | None = None) -> None:
        self.models, self.ids = models, ids
        self.scored = torch.tensor([len(ids) - 1]) if scored is None else scored
        self.written: Tensor | None = None
        self._readings: dict[str, Reading] = {}
        self._mapped: dict[str, KV] = {}

    def reading(self, answerer: Answerer) -> Reading:
        """One model's own reading, by one ordinary forward."""
        if answerer not in self._readings:
            self._readings[answerer] = self._read(answerer)
        return self._readings[answerer]

    def logits_after(self, answerer: Answerer, positions: Tensor) -> Tensor:
        """Logits ``[n, V]`` that a model's own reading gives after some of the scored positions."""
        return self.reading(answerer).logits[torch.searchsorted(self.scored, positions)]

    def mapped(self, mapper: NamedMapper) -> KV:
        """The target's KV as a mapper gives it; the last mapper's is kept, others are let go."""
        if mapper.key not in self._mapped:
            self._mapped = {mapper.key: self.models.map(mapper.mapper, self.reading("source").kv)}
        return self._mapped[mapper.key]

    @torch.no_grad()
    def _read(self, answerer: Answerer) -> Reading:
        model = self.models.of(answerer)
        cache, device = caches.empty(), model.device
        logits = caches.forward(
            model,
            self.ids[None].to(device),
            cache,
            torch.arange(len(self.ids), device=device),
            self.scored.to(device),
        )
        kept = logits[0, :, : self.models.vocabulary].float().cpu()
        return Reading(caches.read(cache), kept)


class Item(NamedTuple):
    """A prompt, and another of at least its length whose KV the ``mismatched`` arm takes."""

    prompt: Prompt
    other: Prompt


def prepared(arm: Arm, item: Item, mapper: NamedMapper | None) -> KV | None:
    """The KV that an arm's answering model finds instead of reading: its prepared cache.

    Args:
        arm: The way of answering.
        item: The prompt.
        mapper: The arm's mapper; only for roles that read one.

    Returns:
        Rotated KV ``[L, 1, H, T, D]`` of all tokens of the prompt, of which a shorter prompt takes
        the beginning; the first ``prefix`` tokens only for ``window``, None if there are none.

    Raises:
        ValueError: The arm needs a mapper and there is none.
    """
    if arm.native or arm.role == "exact":
        return item.prompt.reading(arm.answerer).kv
    if arm.role == "window":
        return first(item.prompt.reading("target").kv, arm.prefix) if arm.prefix else None
    if mapper is None:
        raise ValueError(f"{arm.name} needs a mapper")
    mapped = (item.other if arm.role == "mismatched" else item.prompt).mapped(mapper)
    mapped = first(mapped, len(item.prompt.ids))
    if not (arm.prefix or arm.exact):
        return mapped
    return put_right(mapped, item.prompt.reading("target").kv, arm)


def first(kv: KV, tokens: int) -> KV:
    """Views of the first tokens."""
    return kv.select_tokens(slice(0, tokens))


def put_right(mapped: KV, exact: KV, arm: Arm) -> KV:
    """Mapped KV with an arm's prefix and exact part taken from the target's own.

    What the target would compute for a prefix is what its own reading holds.
    """
    keys, values = mapped.keys.clone(), mapped.values.clone()
    parts = ((keys, exact.keys, "keys"), (values, exact.values, "values"))
    for part, right, name in parts:
        part[:, :, :, : arm.prefix] = right[:, :, :, : arm.prefix]
        if arm.exact == name:
            part.copy_(right)
        elif arm.exact.startswith("layer "):
            layer = int(arm.exact.removeprefix("layer "))
            part[layer] = right[layer]
    return KV(keys, values)
