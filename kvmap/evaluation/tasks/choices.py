"""Which of four continuations belongs to a prompt?"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvmap.evaluation.answering import Answering, Ask
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.tasks.base import PassageItem, Task


@dataclass(frozen=True)
class ChoiceScore:
    """One arm on one passage.

    Attributes:
        nll: Nats of each whole continuation.
        right: Index of the right one.
    """

    nll: list[float]
    right: int

    @property
    def hit(self) -> bool:
        """Whether the right one is the likeliest."""
        return self.nll.index(min(self.nll)) == self.right


@dataclass(frozen=True)
class Choices(Task):
    """Four-way choice of a continuation by its likelihood; all four have equally many tokens.

    Attributes:
        prompt: P, tokens of the prompt.
    """

    prompt: int
    name: ClassVar[str] = "choices"
    score: ClassVar[type] = ChoiceScore

    def scored(self, passage: Passage) -> Tensor:
        """None: the models' own readings hold only one of the four."""
        return torch.empty(0, dtype=torch.long)

    def measure(self, answering: Answering, given: PassageItem) -> ChoiceScore:
        """The four likelihoods."""
        passage, item = given
        four = answering.logits(item, [Ask(self.prompt, passage.choices)])[0]
        nll = [
            -float(logits.log_softmax(-1).gather(1, ids[:, None]).sum())
            for logits, ids in zip(four, passage.choices, strict=True)
        ]
        return ChoiceScore(nll, passage.right)
