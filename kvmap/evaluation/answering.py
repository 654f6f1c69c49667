"""One arm at work: its prepared cache, its repaired tail, and what it says next."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import Cache

from kvmap import cache as caches
from kvmap.evaluation.arms import Arm
from kvmap.evaluation.branches import Branch, run
from kvmap.evaluation.models import Models, NamedMapper
from kvmap.evaluation.prompts import Item, first, prepared

PACKED = 1024
"""About how many tokens go through a model at once; attention masks grow with their square."""


class Ask(NamedTuple):
    """A prompt inside an item's tokens, and what might come after it.

    Attributes:
        end: P, tokens of the prompt.
        continuations: Token ids ``[n]`` of each text whose logits are wanted; n at least 1.
    """

    end: int
    continuations: Sequence[Tensor]


class Answering:
    """An arm with its models.

    Args:
        models: The pair.
        arm: The way of answering.
        mapper: Its mapper; None for roles that read none.
    """

    def __init__(self, models: Models, arm: Arm, mapper: NamedMapper | None = None) -> None:
        self.models, self.arm, self.mapper = models, arm, mapper
        self.model = models.of(arm.answerer)

    def logits(self, item: Item, asks: Sequence[Ask]) -> list[list[Tensor]]:
        """Next-token logits along continuations of prompts.

        Args:
            item: The tokens that the prompts lie in.
            asks: Prompts and continuations.

        Returns:
            For each ask and each of its continuations ``[n, V]``: the logits before each of its
            tokens, of the tokenizer's V tokens.
        """
        before = prepared(self.arm, item, self.mapper)
        answers: list[list[Tensor]] = []
        for group in _groups(asks, self.arm):
            branches: list[Branch] = []
            for ask in group:
                root = len(branches)
                branches.append(self._tail(item, ask.end))
                branches += [
                    Branch(each[:-1], ask.end, branches[root].kept, root, len(each) - 1)
                    for each in ask.continuations
                    if len(each) > 1
                ]
            found = iter(run(self.model, before, branches))
            for ask in group:
                start = next(found)
                rest = [[next(found)] if len(each) > 1 else [] for each in ask.continuations]
                answers.append(
                    [torch.cat([start, *more])[:, : self.models.vocabulary] for more in rest]
                )
        return answers

    @torch.no_grad()
    def opened(self, item: Item, end: int) -> tuple[Cache, Tensor]:
        """The arm's cache after a whole prompt of ``end`` tokens, and the first logits ``[V]``."""
        tail = self._tail(item, end)
        before = prepared(self.arm, item, self.mapper) if tail.kept else None
        cache = caches.write(first(before, tail.kept)) if before is not None else caches.empty()
        return cache, self.extend(cache, tail.ids, tail.start)[-1]

    @torch.no_grad()
    def extend(self, cache: Cache, ids: Tensor, start: int) -> Tensor:
        """Run further tokens ``[n]`` after a cache, which grows; logits ``[n, V]``."""
        device = self.model.device
        positions = torch.arange(start, start + len(ids), device=device)
        logits = caches.forward(self.model, ids[None].to(device), cache, positions)
        return logits[0, :, : self.models.vocabulary].float().cpu()

    def _tail(self, item: Item, end: int) -> Branch:
        """The prompt tokens that the answering model computes itself."""
        start = end - self.arm.repaired_tail(end)
        return Branch(item.prompt.ids[start:end], start, self.arm.kept(end))


def _groups(asks: Sequence[Ask], arm: Arm) -> list[list[Ask]]:
    """Asks side by side, about ``PACKED`` tokens in each group."""
    groups: list[list[Ask]] = []
    room = 0
    for ask in asks:
        size = arm.repaired_tail(ask.end) + sum(len(each) - 1 for each in ask.continuations)
        if not groups or size > room:
            groups.append([])
            room = PACKED
        groups[-1].append(ask)
        room -= size
    return groups
