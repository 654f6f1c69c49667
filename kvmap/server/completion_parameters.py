"""The body of ``/v1/completions``."""

from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kvmap.server.parameters import Parameters, top_within_range

DEFAULT_TOKENS = 16  # as OpenAI's API has it


class CompletionParameters(Parameters):
    """A prompt to go on from: text, or token ids."""

    prompt_field: ClassVar[str] = "prompt"

    prompt: str | list[int]
    max_tokens: int | None = Field(None, ge=1)
    logprobs: int | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, value: Any) -> Any:
        if isinstance(value, list) and value and all(isinstance(one, str | list) for one in value):
            if len(value) > 1:
                raise PydanticCustomError(
                    "prompt", f"{len(value)} prompts in one request; send each in its own"
                )
            value = value[0]
        ids = isinstance(value, list) and all(type(one) is int for one in value)
        if not ids and not isinstance(value, str):
            raise PydanticCustomError("prompt", "Input should be a string or a list of token ids")
        return value

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        top_within_range(self.logprobs, "logprobs")
        return self

    @property
    def asked_tokens(self) -> int | None:
        """Most new tokens as the request names them."""
        return self.max_tokens

    @property
    def asked_logprobs(self) -> int | None:
        """As in :class:`~kvmap.runtime.options.Options`."""
        return self.logprobs

    def default_tokens(self, most: int) -> int:
        """Few, whatever the server gives to a chat."""
        return DEFAULT_TOKENS
