"""What single tokens look like, for log-probabilities."""

from functools import cache, lru_cache
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from kvmap.runtime.text import UNFINISHED


class TokenText(NamedTuple):
    """A token as text and as the bytes that it stands for; None where those are not known."""

    text: str
    bytes: list[int] | None


class TokenTexts:
    r"""Texts of single tokens.

    A token that is part of a character has no text of its own; it is written ``bytes:\xe4`` as
    OpenAI's API does, and its bytes are given exactly where the tokenizer is byte-level.

    Args:
        tokenizer: Whose tokens they are.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._of = lru_cache(maxsize=65_536)(self._make)

    def __call__(self, token: int) -> TokenText:
        """One token's."""
        return self._of(token)

    def _make(self, token: int) -> TokenText:
        text = str(self._tokenizer.decode([token]))
        if UNFINISHED not in text:
            return TokenText(text, list(text.encode()))
        written = str(self._tokenizer.convert_ids_to_tokens(token))
        alphabet = _byte_level_alphabet()
        if not all(character in alphabet for character in written):
            return TokenText(text, None)
        values = [alphabet[character] for character in written]
        return TokenText("bytes:" + "".join(f"\\x{value:02x}" for value in values), values)


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level tokenizer's vocabulary stands for.

    As GPT-2 has it (Radford et al. 2019, ``encoder.py``): printable Latin-1 stands for itself, the
    other bytes, in order, for the characters from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {
        chr(256 + index): value for index, value in enumerate(others)
    }
