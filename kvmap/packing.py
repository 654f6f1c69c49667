"""Texts to documents of equal length in tokens."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kvmap.errors import KVMapError


class Packed(NamedTuple):
    """What packing a corpus gave.

    Attributes:
        ids: ``[documents, length]`` token ids, int64.
        tokens: tokens read from the corpus, those left over included.
    """

    ids: Tensor
    tokens: int


def pack(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int, count: int
) -> Packed:
    """Make at most ``count`` documents of exactly ``length`` tokens.

    Short texts are joined, an EOS token after each. A long text gives as many whole documents as it
    can; what is left of a text that was cut is dropped, so that no document opens in the middle of
    a thought unless the text fills it. Documents begin with the BOS token where the tokenizer
    itself puts one before a text.

    Args:
        texts: in order; read only as far as needed.
        tokenizer: both models' tokenizer.
        length: tokens per document, BOS included.
        count: documents wanted.

    Raises:
        KVMapError: the tokenizer has no EOS token.
    """
    if tokenizer.eos_token_id is None:
        raise KVMapError(
            "the tokenizer has no EOS token to separate documents with; "
            "set eos_token in the model's tokenizer_config.json"
        )
    opening = _opening(tokenizer)
    room = length - len(opening)
    documents: list[list[int]] = []
    tokens = 0
    waiting: list[int] = []
    for ids in _encoded(texts, tokenizer):
        tokens += len(ids)
        waiting += ids
        cut = len(waiting) >= room
        while len(waiting) >= room and len(documents) < count:
            documents.append(opening + waiting[:room])
            waiting = waiting[room:]
        if cut:
            waiting = []
        if len(documents) >= count:
            break
    return Packed(torch.tensor(documents, dtype=torch.int64).reshape(-1, length), tokens)


def require_documents(packed: Packed, split: str, length: int, count: int) -> None:
    """Refuse a corpus that is too small.

    Raises:
        KVMapError: naming what was found, what is needed, and the option to lower.
    """
    found = packed.ids.shape[0]
    if packed.tokens == 0:
        raise KVMapError(
            f"the corpus has no text for the {split} set; use a corpus with more documents "
            "(in a text file blank lines separate them)"
        )
    if found == 0:
        raise KVMapError(
            f"the corpus has {packed.tokens} tokens for the {split} set and one document needs "
            f"{length}; use a larger corpus or lower data.length"
        )
    if found < count:
        raise KVMapError(
            f"the corpus has {found} documents of {length} tokens for the {split} set and {count} "
            f"are asked for; lower data.documents.{split} to {found} or use a larger corpus"
        )


def _opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The BOS token, if the tokenizer puts it before a text."""
    bos = tokenizer.bos_token_id
    return [bos] if bos is not None and tokenizer("a").input_ids[:1] == [bos] else []


def _encoded(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[list[int]]:
    """Each text's ids without special tokens, and EOS."""
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        yield [*ids, tokenizer.eos_token_id]
