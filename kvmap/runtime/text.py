"""Text from tokens that come one by one, in whole characters."""

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"  # what a decoder gives for bytes that are not yet a character


class GrowingText:
    """The text of tokens so far; joined, the pieces are the text of all tokens decoded at once.

    Only a window of the latest tokens is decoded anew: it starts one finished character before
    them, since some tokenizers treat the first token of a text differently.

    Args:
        tokenizer: Whose tokens they are; special tokens give no text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._settled: list[int] = []  # tokens whose text has been given
        self._open: list[int] = []
        self._given = ""  # text of the open tokens that has been given

    def push(self, token: int) -> str:
        """Add a token; returns the text that it settles, often all of its own."""
        self._open.append(token)
        text = self._text_of_open()
        whole = text.rstrip(UNFINISHED)
        new = whole[len(self._given) :]
        if whole == text:
            self._settled = self._open if text else self._settled + self._open
            self._open, self._given = [], ""
        else:
            self._given = max(self._given, whole, key=len)
        return new

    def finish(self) -> str:
        """What is left when no more tokens come: bytes that never became a character."""
        return self._text_of_open()[len(self._given) :]

    def _text_of_open(self) -> str:
        before = self._decode(self._settled)
        return self._decode(self._settled + self._open)[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        if not tokens:
            return ""
        decoded = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(decoded)
