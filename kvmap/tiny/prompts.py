"""Prompts of an exact length from the embedded corpus."""

from transformers import PreTrainedTokenizerBase

from kvmap.errors import KVMapError
from kvmap.tiny.english import English


def prompts(
    tokenizer: PreTrainedTokenizerBase, split: str, length: int, count: int
) -> list[list[int]]:
    """The first tokens of so many documents.

    Args:
        tokenizer: Any; the text is English.
        split: Whose documents, ``development`` or ``test``.
        length: Tokens of each prompt.
        count: How many.

    Raises:
        KVMapError: The tokenizer makes fewer tokens of a document than are asked for.
    """
    english, found = English(words=length + 64), []
    for index in range(count):
        ids = list(tokenizer(english.document(split, index).text)["input_ids"])
        if len(ids) < length:
            raise KVMapError(f"a document has only {len(ids)} tokens; ask for shorter prompts")
        found.append(ids[:length])
    return found
