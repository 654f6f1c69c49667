"""Another server as an arm: anything that speaks OpenAI's ``/v1/completions``."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from kvmap.benchmark.arms import Arm, Timing
from kvmap.errors import KVMapError

if TYPE_CHECKING:
    from openai import OpenAI

WAYS: tuple[dict[str, Any], ...] = (
    {"stream_options": {"include_usage": True}, "extra_body": {"ignore_eos": True}},
    {"stream_options": {"include_usage": True}},
    {},
)
"""What is asked beside the prompt, from what we want to what every server knows."""

PROBE = (1, 2, 3)  # a prompt that finds out which


@dataclass(frozen=True)
class External:
    """Which server.

    Attributes:
        url: Its base, usually ending in ``/v1``.
        model: The name that it gives its model.
        api_key_env: Environment variable that holds its key; None for a server that asks for none.
        as_text: Whether prompts are sent as text; otherwise as token ids, which only a server with
            the pair's tokenizer understands.
        timeout_s: Seconds that an answer may take.

    Raises:
        KVMapError: A value has no meaning.
    """

    url: str
    model: str
    api_key_env: str | None = None
    as_text: bool = False
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what names no server."""
        if not str(self.url).startswith(("http://", "https://")):
            raise KVMapError(
                f"external.url={self.url} is no address; give one like http://127.0.0.1:8000/v1"
            )
        if not self.model:
            raise KVMapError(
                f"external.url={self.url} needs external.model, the name of the model there"
            )
        if not isinstance(self.timeout_s, float | int) or not self.timeout_s > 0:
            raise KVMapError(f"external.timeout_s={self.timeout_s} must be a number above 0")

    @property
    def key(self) -> str:
        """The key from the environment.

        Raises:
            KVMapError: The variable is not set.
        """
        if self.api_key_env is None:
            return "none"
        found = os.environ.get(self.api_key_env)
        if not found:
            raise KVMapError(
                f"external.api_key_env={self.api_key_env} is not set in the environment; "
                "set it to the server's key, or leave it out"
            )
        return found


class ExternalArm(Arm):
    """Through another server, as a client sees it: the way there and back is in every time.

    A server that caches prompts sees each of ours once.

    Args:
        external: Which.
        tokenizer: The pair's, for prompts as text.

    Raises:
        KVMapError: The client library is missing, or the server does not answer.
    """

    def __init__(self, external: External, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(f"external, {external.model}", "external")
        self._external, self._tokenizer = external, tokenizer
        self._client = _client(external)
        self._way = self._first_way()

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Timing:
        """Answer greedily; the first token is there when the first chunk is."""
        return self._told(partial(self._stream, prompt, new_tokens, self._way))

    def _stream(self, prompt: Sequence[int], new_tokens: int, way: dict[str, Any]) -> Timing:
        asked = self._tokenizer.decode(list(prompt)) if self._external.as_text else list(prompt)
        started = time.perf_counter()
        ttft = latency = None
        chunks, told = 0, None
        for chunk in self._client.completions.create(
            model=self._external.model,
            prompt=asked,
            max_tokens=new_tokens,
            temperature=0,
            stream=True,
            **way,
        ):
            if chunk.choices:
                latency = time.perf_counter() - started
                ttft = ttft or latency
                chunks += bool(chunk.choices[0].text)
            if chunk.usage is not None:
                told = chunk.usage.completion_tokens
        if ttft is None or latency is None:
            raise KVMapError(
                f"external.url={self._external.url} sent no answer; check that it streams"
            )
        return Timing(ttft, latency, max(chunks, 1) if told is None else told)

    def _first_way(self) -> dict[str, Any]:
        """The fullest request that the server accepts."""
        from openai import BadRequestError, UnprocessableEntityError

        *fuller, plainest = WAYS
        for way in fuller:
            with suppress(BadRequestError, UnprocessableEntityError):
                self._told(partial(self._stream, PROBE, 2, way), bad=False)
                return way
        self._told(partial(self._stream, PROBE, 2, plainest))
        return plainest

    def _told(self, work: Callable[[], Timing], bad: bool = True) -> Timing:
        """Do it, and tell plainly what a server or the way there did wrong.

        Args:
            work: A request.
            bad: Whether the server's calling it a bad request is told, too, or handed on.
        """
        from openai import APIConnectionError, APIStatusError, BadRequestError
        from openai import UnprocessableEntityError as Unprocessable

        url = self._external.url
        try:
            return work()
        except APIConnectionError as error:
            cause = error.__cause__ or error
            raise KVMapError(
                f"external.url={url} does not answer ({cause}); start that server, or leave "
                "external.url out"
            ) from error
        except APIStatusError as error:
            if not bad and isinstance(error, BadRequestError | Unprocessable):
                raise
            raise KVMapError(
                f"external.url={url} refuses with status {error.status_code} ({_reason(error)}); "
                f"check external.model={self._external.model}, external.api_key_env and the "
                "lengths that it serves"
            ) from error


def _client(external: External) -> "OpenAI":
    try:
        from openai import OpenAI
    except ImportError:
        raise KVMapError(
            "external.url needs the package openai; pip install 'kvmap[serve]'"
        ) from None
    return OpenAI(
        base_url=external.url, api_key=external.key, max_retries=0, timeout=external.timeout_s
    )


def _reason(error: Any) -> str:
    body = error.body
    said = body.get("message") if isinstance(body, dict) else None
    return str(said or error.message).splitlines()[0]
