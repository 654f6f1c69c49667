"""How likely an arm finds the text that follows a prompt, and how far it is from the target."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvmap.evaluation.answering import Answering, Ask
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.tasks.base import PassageItem, Task


@dataclass(frozen=True)
class ContinuationScore:
    """One arm on one passage, by position after the prompt.

    Attributes:
        nll: Nats of each token of the continuation.
        kl: KL(target ‖ arm) of the next-token distributions, nats.
        same_top: Whether arm and target find the same token likeliest.
    """

    nll: list[float]
    kl: list[float]
    same_top: list[bool]


@dataclass(frozen=True)
class Continuation(Task):
    """Teacher-forced continuation of a prompt.

    Attributes:
        prompt: P, tokens of the prompt.
        tokens: Tokens after it that are scored.
    """

    prompt: int
    tokens: int
    name: ClassVar[str] = "continuation"
    score: ClassVar[type] = ContinuationScore

    def scored(self, passage: Passage) -> Tensor:
        """From the prompt's last token to the last but one."""
        return torch.arange(self.prompt - 1, self.prompt + self.tokens - 1)

    def measure(self, answering: Answering, given: PassageItem) -> ContinuationScore:
        """NLL of the text's own continuation, and agreement with the target along it."""
        passage, item = given
        text = passage.ids[self.prompt : self.prompt + self.tokens]
        positions = self.scored(passage)
        target = item.prompt.logits_after("target", positions).log_softmax(-1)
        if answering.arm.native:
            logits = item.prompt.logits_after(answering.arm.answerer, positions)
        else:
            logits = answering.logits(item, [Ask(self.prompt, [text])])[0][0]
        said = logits.log_softmax(-1)
        return ContinuationScore(
            nll=(-said.gather(1, text[:, None])[:, 0]).tolist(),
            kl=(target.exp() * (target - said)).sum(-1).tolist(),
            same_top=(target.argmax(-1) == said.argmax(-1)).tolist(),
        )
