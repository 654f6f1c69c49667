"""The body of ``/v1/chat/completions``."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from kvmap.server.errors import invalid
from kvmap.server.messages import Message
from kvmap.server.parameters import Parameters, top_within_range


class ChatParameters(Parameters):
    """A conversation to answer."""

    prompt_field: ClassVar[str] = "messages"

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise invalid(
                f"max_tokens={self.max_tokens} and max_completion_tokens="
                f"{self.max_completion_tokens} are one setting; give one of them",
                "max_tokens",
            )
        top_within_range(self.top_logprobs, "top_logprobs")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs needs logprobs=true", "top_logprobs")
        return self

    @property
    def asked_tokens(self) -> int | None:
        """Most new tokens as the request names them."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def asked_logprobs(self) -> int | None:
        """As in :class:`~kvmap.runtime.options.Options`."""
        return self.top_logprobs or 0 if self.logprobs else None

    def default_tokens(self, most: int) -> int:
        """What the server gives."""
        return most
