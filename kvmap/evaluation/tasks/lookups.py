"""Which of four values was bound to a name, far above?"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvmap.evaluation.answering import Answering, Ask
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.tasks.base import PassageItem, Task


@dataclass(frozen=True)
class LookupScore:
    """One arm on one passage's look-ups.

    Attributes:
        distances: Tokens between each binding and its question.
        hits: Whether each was answered right.
    """

    distances: list[int]
    hits: list[bool]


@dataclass(frozen=True)
class Lookups(Task):
    """Four-way in-context look-ups: each prompt ends just before the answer.

    The answers were bound beyond the repaired tokens; the wrong ones are values bound to other
    names in the same prompt. All look-ups of a passage read one cache.
    """

    name: ClassVar[str] = "lookups"
    score: ClassVar[type] = LookupScore

    def scored(self, passage: Passage) -> Tensor:
        """The token before each answer."""
        return torch.tensor([x.position - 1 for x in passage.lookups], dtype=torch.long)

    def measure(self, answering: Answering, given: PassageItem) -> LookupScore:
        """All look-ups of a passage."""
        passage, item = given
        asked = passage.lookups
        if not asked:
            return LookupScore([], [])
        if answering.arm.native:
            rows = item.prompt.logits_after(answering.arm.answerer, self.scored(passage))
        else:
            answers = torch.empty(1, dtype=torch.long)  # one token: no continuation is run
            asks = [Ask(lookup.position, [answers]) for lookup in asked]
            rows = torch.cat([four[0] for four in answering.logits(item, asks)])
        four = rows.gather(1, torch.tensor([lookup.choices for lookup in asked]))
        right = torch.tensor([lookup.right for lookup in asked])
        hits = (four.argmax(-1) == right).tolist()
        return LookupScore([lookup.distance for lookup in asked], hits)
