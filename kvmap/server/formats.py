"""The two APIs' answers as JSON: whole, and in chunks."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from kvmap.runtime.answer import FinishReason, TokenLogprob
from kvmap.server.summary import Summary
from kvmap.server.token_text import TokenTexts

JSON = dict[str, Any]


class Format(ABC):
    """One answer in the form of one API.

    Args:
        model: The name that clients give.
        texts: Texts of single tokens.
        logprobs: How many likeliest tokens are reported; None for no log-probabilities.
        usage: Whether a stream ends with a chunk of its usage.
    """

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str, texts: TokenTexts, logprobs: int | None, usage: bool) -> None:
        self._texts, self._wanted, self._usage = texts, logprobs, usage
        self._head: JSON = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(
        self,
        text: str,
        logprobs: Sequence[TokenLogprob],
        reason: FinishReason,
        summary: Summary,
    ) -> JSON:
        """An answer that is not streamed."""
        choice = self._choice(text, self._logprobs(logprobs), reason)
        return {
            **self._head,
            "object": self.whole_object,
            "choices": [choice],
            "usage": summary.usage(),
            "kvmap": summary.extension(),
        }

    def opening(self) -> list[JSON]:
        """Chunks before the first text."""
        return []

    def grown(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[JSON]:
        """The chunk that new text and tokens need, if they need one."""
        if not text and not (logprobs and self._wanted is not None):
            return []
        return [self._chunk([self._part(text, self._logprobs(logprobs))])]

    def closing(self, reason: FinishReason, summary: Summary) -> list[JSON]:
        """Chunks after the last text: why it ended, and the usage if asked for."""
        end = self._chunk([self._end(reason)])
        if not self._usage:
            return [{**end, "kvmap": summary.extension()}]
        tail = {"usage": summary.usage(), "kvmap": summary.extension()}
        return [end, {**self._chunk([]), **tail}]

    def _chunk(self, choices: list[JSON]) -> JSON:
        chunk = {**self._head, "object": self.chunk_object, "choices": choices}
        return {**chunk, "usage": None} if self._usage else chunk

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> JSON | None:
        return None if self._wanted is None else self._form(logprobs)

    @abstractmethod
    def _choice(self, text: str, logprobs: JSON | None, reason: FinishReason) -> JSON:
        """A whole answer."""

    @abstractmethod
    def _part(self, text: str, logprobs: JSON | None) -> JSON:
        """New text of a stream."""

    @abstractmethod
    def _end(self, reason: FinishReason) -> JSON:
        """A stream's end."""

    @abstractmethod
    def _form(self, logprobs: Sequence[TokenLogprob]) -> JSON:
        """Log-probabilities."""


class CompletionFormat(Format):
    """``/v1/completions``."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, texts: TokenTexts, logprobs: int | None, usage: bool) -> None:
        super().__init__(model, texts, logprobs, usage)
        self._offset = 0  # characters of the tokens that were reported so far

    def _choice(self, text: str, logprobs: JSON | None, reason: FinishReason | None) -> JSON:
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _part(self, text: str, logprobs: JSON | None) -> JSON:
        return self._choice(text, logprobs, None)

    def _end(self, reason: FinishReason) -> JSON:
        return self._choice("", None, reason)

    def _form(self, logprobs: Sequence[TokenLogprob]) -> JSON:
        tokens, offsets, tops = [], [], []
        for each in logprobs:
            text = self._texts(each.token).text
            tokens.append(text)
            offsets.append(self._offset)
            self._offset += len(text)
            top = {self._texts(token).text: _finite(value) for token, value in each.top}
            tops.append({**top, text: _finite(each.logprob)})  # the chosen one is always there
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(each.logprob) for each in logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


class ChatFormat(Format):
    """``/v1/chat/completions``."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> list[JSON]:
        """Who speaks."""
        return [self._chunk([self._delta({"role": "assistant", "content": ""}, None, None)])]

    def _choice(self, text: str, logprobs: JSON | None, reason: FinishReason) -> JSON:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _part(self, text: str, logprobs: JSON | None) -> JSON:
        return self._delta({"content": text}, logprobs, None)

    def _end(self, reason: FinishReason) -> JSON:
        return self._delta({}, None, reason)

    def _delta(self, delta: JSON, logprobs: JSON | None, reason: FinishReason | None) -> JSON:
        return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _form(self, logprobs: Sequence[TokenLogprob]) -> JSON:
        content = [
            {
                **self._entry(each.token, each.logprob),
                "top_logprobs": [self._entry(token, value) for token, value in each.top],
            }
            for each in logprobs
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> JSON:
        text = self._texts(token)
        return {"token": text.text, "bytes": text.bytes, "logprob": _finite(logprob)}


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI's API writes this number for it."""
    return max(logprob, -9999.0)
