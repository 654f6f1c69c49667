"""Token rows to train on: whole documents mostly, some excerpts, some pairs of short ones."""

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from kvmap.tiny.english import English
from kvmap.tiny.kinds import KINDS
from kvmap.tiny.mimetic import WordClasses
from kvmap.tiny.words import PEOPLE

EXCERPT, PAIRED = 0.12, 0.10  # shares of rows


class Rows:
    """Rows of equal length from the training split, addressed by number.

    Most rows are the beginning of a document. Excerpts start in the middle of one, so that the
    models know what it is to see only a window. Paired rows hold a short document, the end token,
    and the next document, so that the end token means a fresh start.

    Args:
        tokenizer: the pair's tokenizer.
        seed: of the English.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int):
        self.tokenizer, self.seed = tokenizer, seed

    def __call__(self, number: int, length: int, facts: int) -> Tensor:
        """Write row `number`: token ids [length + 1].

        Args:
            number: which row.
            length: tokens to predict.
            facts: bindings per document.
        """
        rng = np.random.default_rng((self.seed, number))
        kind = rng.random()
        if kind < EXCERPT:
            ids = self._ids(number, 2 * length, facts)
            start = int(rng.integers(1, length))
            ids = ids[start:]
        elif kind < EXCERPT + PAIRED:
            first = self._ids(2 * number + 1_000_000_000, length // 2, facts)
            ids = [*first, self.tokenizer.eos_token_id, *self._ids(number, length, facts)]
        else:
            ids = self._ids(number, length + 1, facts)
        return torch.tensor(ids[: length + 1])

    def _ids(self, index: int, words: int, facts: int) -> list[int]:
        document = English(facts, self.seed, words).document("training", index)
        return self.tokenizer(document.text)["input_ids"]


def value_tokens(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Token ids of all words that can be bound to a name, or that hint at such a word."""
    words = sorted({word for kind in KINDS for word in kind.values + kind.hints})
    return torch.tensor([tokenizer(" " + word)["input_ids"][-1] for word in words])


def word_classes(tokenizer: PreTrainedTokenizerFast) -> WordClasses:
    """Find the names and the values in the vocabulary."""
    names = [tokenizer(" " + name)["input_ids"][-1] for name in PEOPLE]
    return WordClasses(torch.tensor(names), value_tokens(tokenizer))
