"""What an arm would write itself."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvmap import cache as caches
from kvmap.evaluation.answering import Answering
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.tasks.base import PassageItem, Task


@dataclass(frozen=True)
class GreedyScore:
    """One arm on one passage.

    Attributes:
        tokens: What it writes after the prompt, an end token like any other.
    """

    tokens: list[int]


@dataclass(frozen=True)
class Greedy(Task):
    """Greedy continuation of a prompt.

    A guess is checked in one forward: as far as its every token is the likeliest after those before
    it, it *is* the greedy continuation; the rest is written token by token. The guess is what the
    first arm wrote (the target), or the text's own continuation; it decides how long this takes,
    not what comes out.

    Attributes:
        prompt: P, tokens of the prompt.
        tokens: How many to write.
    """

    prompt: int
    tokens: int
    name: ClassVar[str] = "greedy"
    score: ClassVar[type] = GreedyScore

    def scored(self, passage: Passage) -> Tensor:
        """None: nobody's own reading holds what will be written."""
        return torch.empty(0, dtype=torch.long)

    def measure(self, answering: Answering, given: PassageItem) -> GreedyScore:
        """Write."""
        passage, item = given
        cache, opening = answering.opened(item, self.prompt)
        held = caches.length(cache)
        text = passage.ids[self.prompt : self.prompt + self.tokens]
        guess = text if item.prompt.written is None else item.prompt.written
        rows = [opening[None]]
        if self.tokens > 1:
            rows.append(answering.extend(cache, guess[:-1], self.prompt))
        found = torch.cat(rows).argmax(-1)
        right = int((found == guess).int().cumprod(0).sum())
        tokens = found[: right + 1].tolist()[: self.tokens]
        # Cached are the right ones of the guess; the token that is new is run next.
        caches.truncate_to(cache, held + min(right, self.tokens - 1))
        while len(tokens) < self.tokens:
            last = torch.tensor(tokens[-1:])
            logits = answering.extend(cache, last, self.prompt + len(tokens) - 1)[-1]
            tokens.append(int(logits.argmax()))
        if item.prompt.written is None:
            item.prompt.written = torch.tensor(tokens)
        return GreedyScore(tokens)
