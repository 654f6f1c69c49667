"""The items of an evaluation: passages of one length, with look-ups and choices in them."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kvmap.corpora.base import Corpus, Split
from kvmap.corpora.embedded import RANGES, Embedded
from kvmap.errors import KVMapError
from kvmap.evaluation.distractors import distractors
from kvmap.tiny.lookup_tokens import LookupTokens, encode

PATIENCE = 500
"""Texts in a row that may bring nothing before the search is given up; a corpus may have no end."""


@dataclass(frozen=True)
class Passage:
    """One text.

    Attributes:
        ids: ``[T]`` tokens: the prompt's, then the continuation's.
        lookups: Questions in it whose values were bound far enough before.
        choices: Four continuations of the prompt, one of them its own; empty where not asked for.
        right: Index of its own.
    """

    ids: Tensor
    lookups: tuple[LookupTokens, ...] = ()
    choices: tuple[Tensor, ...] = ()
    right: int = 0


def passages(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    length: int,
    count: int,
    lookups: int = 0,
    distance: int = 0,
) -> list[Passage]:
    """The first texts of a set that are long enough, cut to one length.

    Args:
        corpus: Where from. Only the embedded corpus knows look-ups.
        tokenizer: The pair's.
        split: ``development`` or ``test``.
        length: T, tokens per passage.
        count: Least number of passages.
        lookups: Least number of look-ups in all passages together.
        distance: Least distance of a look-up from its binding.

    Raises:
        KVMapError: The set has too few texts of that length.
    """
    found: list[Passage] = []
    questions = 0
    wanted = lookups if isinstance(corpus, Embedded) else 0
    fruitless = 0
    for ids, asked in _encoded(corpus, tokenizer, split):
        if len(found) >= count and questions >= wanted:
            return found
        fruitless += 1
        if fruitless > PATIENCE:
            break
        if len(ids) < length:
            continue
        far = tuple(x for x in asked if x.distance >= distance and 0 < x.position < length)
        if len(found) < count or far:
            fruitless = 0
        found.append(Passage(ids[:length], far))
        questions += len(far)
    if len(found) < count:
        raise KVMapError(
            f"the {split} set of {corpus.identity().kind} has {len(found)} texts of {length} "
            f"tokens, {count} are wanted; use fewer (sizes.passages), shorter ones (sizes.prompt) "
            "or more text"
        )
    if questions < wanted:
        raise KVMapError(
            f"texts of {length} tokens hold hardly any look-up that is {distance} tokens from its "
            "binding; use longer ones (sizes.prompt), a lower sizes.lookup_distance, or "
            "sizes.lookups=0"
        )
    return found


def _encoded(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, split: Split
) -> Iterator[tuple[Tensor, list[LookupTokens]]]:
    """Texts as ids, with look-ups where the corpus knows them."""
    if isinstance(corpus, Embedded):
        part, index = RANGES[split]
        while True:
            yield encode(tokenizer, corpus.english.document(part, index))  # type: ignore[arg-type]
            index += 1
    for text in corpus.documents(split):
        yield torch.tensor(tokenizer(text)["input_ids"]), []


def with_choices(found: Sequence[Passage], prompt: int, tokens: int, seed: int) -> list[Passage]:
    """Passages with four continuations each; see :func:`distractors` for the wrong ones.

    Args:
        found: Passages of one length.
        prompt: P, where continuations begin.
        tokens: Tokens of a continuation.
        seed: Of the places where the right one stands.
    """
    table = torch.stack([passage.ids for passage in found])
    draw = torch.Generator().manual_seed(seed)
    places = torch.randint(4, (len(found),), generator=draw).tolist()
    result = []
    for index, (passage, right) in enumerate(zip(found, places, strict=True)):
        four = distractors(table, index, prompt, tokens)
        four.insert(right, passage.ids[prompt : prompt + tokens])
        result.append(replace(passage, choices=tuple(four), right=right))
    return result


def fingerprint(found: Sequence[Passage]) -> str:
    """Twelve hex digits of all that the passages ask."""
    digest = hashlib.sha256()
    for passage in found:
        digest.update(passage.ids.numpy().tobytes())
        digest.update(repr((passage.lookups, passage.right)).encode())
        for choice in passage.choices:
            digest.update(choice.numpy().tobytes())
    return digest.hexdigest()[:12]
