"""Prompts of an exact length from the embedded corpus."""

from transformers import PreTrainedTokenizerBase

from kvmap.errors import KVMapError
from kvmap.tiny.english import English


class Drawn:
    """Gives prompts of one length after another, each from documents of its own.

    Args:
        tokenizer: As in :func:`prompts`.
        split: Likewise.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, split: str) -> None:
        self._tokenizer, self._split, self._used = tokenizer, split, 0

    def __call__(self, length: int, count: int) -> list[list[int]]:
        """So many prompts that share no beginning with any before."""
        found = prompts(self._tokenizer, self._split, length, count, self._used)
        self._used += count
        return found


def prompts(
    tokenizer: PreTrainedTokenizerBase, split: str, length: int, count: int, first: int = 0
) -> list[list[int]]:
    """The first tokens of so many documents.

    Args:
        tokenizer: Any; the text is English.
        split: Whose documents, ``development`` or ``test``.
        length: Tokens of each prompt.
        count: How many.
        first: Documents that are passed over.

    Raises:
        KVMapError: The tokenizer makes fewer tokens of a document than are asked for.
    """
    english, found = English(words=length + 64), []
    for index in range(first, first + count):
        ids = list(tokenizer(english.document(split, index).text)["input_ids"])
        if len(ids) < length:
            raise KVMapError(f"a document has only {len(ids)} tokens; ask for shorter prompts")
        found.append(ids[:length])
    return found
