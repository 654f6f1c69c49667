"""Prompts of an exact length from test documents."""

from kvmap.errors import KVMapError
from kvmap.pair import ModelPair
from kvmap.tiny.english import English


def benchmark_prompts(pair: ModelPair, length: int, count: int) -> list[list[int]]:
    """The first tokens of so many test documents.

    Raises:
        KVMapError: The tokenizer makes fewer tokens of a document than are asked for.
    """
    english, prompts = English(words=length + 64), []
    for index in range(count):
        ids = list(pair.target.tokenizer(english.document("test", index).text)["input_ids"])
        if len(ids) < length:
            raise KVMapError(f"a test document has only {len(ids)} tokens; ask for shorter prompts")
        prompts.append(ids[:length])
    return prompts
