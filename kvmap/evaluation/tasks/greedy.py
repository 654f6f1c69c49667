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

    Decoding is a search for a fixed point: a guess whose every token is the likeliest after those
    before it *is* the greedy continuation. One forward checks a whole guess and gives the next one,
    which is right for at least one token more. The first guess is what the first arm wrote (the
    target), or the text's own continuation; it decides how long the search takes, not its end.

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
        text = passage.ids[self.prompt : self.prompt + self.tokens]
        guess = (text if item.prompt.written is None else item.prompt.written).clone()
        guess[0] = opening.argmax()
        held = caches.length(cache)
        for _ in range(len(guess) - 1):
            logits = answering.extend(cache, guess[:-1], self.prompt)
            caches.truncate_to(cache, held)
            found = torch.cat([guess[:1], logits.argmax(-1)])
            if torch.equal(found, guess):
                break
            guess = found
        if item.prompt.written is None:
            item.prompt.written = guess
        return GreedyScore(guess.tolist())
