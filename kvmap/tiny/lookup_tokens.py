"""Look-ups in tokens: where a question's answer stands in the encoded text."""

from bisect import bisect_right
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from kvmap.tiny.english import Document


class LookupTokens(NamedTuple):
    """One look-up, in tokens.

    Attributes:
        position: index of the answer's token; the prompt is everything before it.
        distance: tokens between the binding and the answer.
        choices: first token of each choice, four ids.
        right: which of the choices is the answer.
    """

    position: int
    distance: int
    choices: tuple[int, ...]
    right: int


def encode(
    tokenizer: PreTrainedTokenizerFast, document: Document
) -> tuple[Tensor, list[LookupTokens]]:
    """Encode a document and its look-ups.

    Args:
        tokenizer: the pair's tokenizer; a word's token includes the space before it.
        document: text and look-ups in characters.

    Returns:
        Token ids [T], and the look-ups.
    """
    encoded = tokenizer(document.text, return_offsets_mapping=True)
    ends = [end for _, end in encoded["offset_mapping"]]
    lookups = []
    for lookup in document.lookups:
        position, stated = bisect_right(ends, lookup.position), bisect_right(ends, lookup.stated)
        choices = tuple(tokenizer(" " + word)["input_ids"][0] for word in lookup.choices)
        right = lookup.choices.index(lookup.answer)
        lookups.append(LookupTokens(position, position - stated, choices, right))
    return torch.tensor(encoded["input_ids"]), lookups
