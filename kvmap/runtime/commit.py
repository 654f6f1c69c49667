"""The one place where an answer grows and ends."""

from collections.abc import Collection, Sequence

from transformers import PreTrainedTokenizerBase

from kvmap.runtime.answer import FinishReason, Piece, TokenLogprob
from kvmap.runtime.options import Options
from kvmap.runtime.text import GrowingText


class Commit:
    """Takes tokens one by one; the first that ends the answer is the last one taken.

    In this order a token is asked: is it an end token, does its text complete a stop string, is
    the answer long enough. So it does not matter how many tokens a round brings.

    Args:
        options: Stop strings, lengths.
        ends: Tokens that end the answer.
        tokenizer: Gives the text.

    Attributes:
        tokens: Generated tokens, the deciding one included.
        text: Text given out so far; at the end, up to the stop string.
        logprobs: One for each token if they are given.
        finish_reason: None while the answer goes on.
    """

    def __init__(
        self, options: Options, ends: Collection[int], tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._options, self._ends = options, ends
        self._growing = GrowingText(tokenizer)
        self._held = ""  # text that may yet turn into a stop string
        self.tokens: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None

    def __call__(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> Piece:
        """Take the tokens of one round, as many as the answer still needs."""
        before, shown = len(self.tokens), len(self.text)
        for token in tokens:
            self._take(token)
            if self.finish_reason is not None:
                break
        taken = len(self.tokens) - before
        self.logprobs += logprobs[:taken]
        return Piece(
            self.text[shown:],
            tuple(self.tokens[before:]),
            tuple(logprobs[:taken]),
            self.finish_reason,
        )

    def _take(self, token: int) -> None:
        self.tokens.append(token)
        may_stop = len(self.tokens) >= self._options.min_tokens
        if token in self._ends and may_stop:
            self._finish("stop", self._held + self._growing.finish())
            return
        text = self._held + self._growing.push(token)
        at = self._stop_in(text) if may_stop else -1
        if at >= 0:
            self._finish("stop", text[:at])
        elif len(self.tokens) >= self._options.max_new_tokens:
            self._finish("length", text + self._growing.finish())
        else:
            held = self._beginning_of_stop(text) if may_stop else 0
            self.text += text[: len(text) - held]
            self._held = text[len(text) - held :]

    def _finish(self, reason: FinishReason, rest: str) -> None:
        self.text += rest
        self.finish_reason = reason

    def _stop_in(self, text: str) -> int:
        """Where the first stop string starts, -1 without one."""
        found = [at for stop in self._options.stop if (at := text.find(stop)) >= 0]
        return min(found, default=-1)

    def _beginning_of_stop(self, text: str) -> int:
        """Length of the longest end of the text with which a stop string starts."""
        longest = max((len(stop) for stop in self._options.stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._options.stop):
                return length
        return 0
