"""What a task is."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from kvmap.evaluation.answering import Answering
from kvmap.evaluation.passages import Passage
from kvmap.evaluation.prompts import Item


class PassageItem(NamedTuple):
    """A passage and what the models make of it.

    Attributes:
        passage: The text and its questions.
        item: Its tokens' KV, and another passage's.
    """

    passage: Passage
    item: Item


class Task(ABC):
    """Asks arms about passages, one passage at a time. A dataclass: its fields are its settings.

    Attributes:
        name: What it is called in files and tables.
        score: The dataclass that it gives.
    """

    name: ClassVar[str]
    score: ClassVar[type]

    @abstractmethod
    def scored(self, passage: Passage) -> Tensor:
        """Positions whose logits the models' own readings should keep for this task."""

    @abstractmethod
    def measure(self, answering: Answering, given: PassageItem) -> Any:
        """Ask one arm about one passage; gives a :attr:`score`."""
