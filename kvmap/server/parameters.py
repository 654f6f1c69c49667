"""The parameters that both APIs share: their types, their ranges, and what is refused."""

import json
import secrets
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from kvmap.runtime.options import MAX_TOP, Mode, Options
from kvmap.server.errors import APIError, invalid

MOST_STOPS = 4  # as OpenAI's API bounds them
LONGEST_SHOWN = 60  # characters of a value that an error repeats

COMPLAINTS = {
    "model_type": "it should be a JSON object",
    "model_attributes_type": "it should be a JSON object",
    "too_short": "it should not be empty",
}
"""pydantic's words for the types of its errors, where they would name our classes."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "echo": (False,),
    "suffix": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
}
"""OpenAI's parameters that are not supported, each with the values, beside null, that ask for
nothing; those are accepted."""


class StreamOptions(BaseModel):
    """What a stream carries beside the answer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers; there is none here


class Parameters(BaseModel):
    """A request's body. Every value may be null, which is the same as leaving it out.

    A field's meaning is that of OpenAI's API, or of :class:`~kvmap.runtime.options.Options` for
    ``top_k``, ``stop_token_ids``, ``min_tokens``, ``ignore_eos`` and ``mode``, which OpenAI's
    does not have.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )
    prompt_field: ClassVar[str]

    model: str
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # names an end user to a provider; nothing depends on it here
    mode: Mode | None = None

    @classmethod
    def read(cls, values: Any) -> Self:
        """Check a decoded body.

        Raises:
            APIError: Something is missing, wrong, unknown or unsupported; it names the parameter.
        """
        if not isinstance(values, dict):
            raise invalid("the body must be a JSON object")
        kept = {}
        for name, value in values.items():
            if name in NEUTRAL and name not in cls.model_fields:
                _require_neutral(name, value)
            else:
                kept[name] = value
        try:
            return cls.model_validate(kept)
        except ValidationError as error:
            raise _told(error.errors(include_url=False)[0]) from None

    @field_validator("stop", mode="before")
    @classmethod
    def _list_stops(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if isinstance(stops, list) and not all(isinstance(stop, str) and stop for stop in stops):
            raise PydanticCustomError("stop", "Input should be strings of at least one character")
        if isinstance(stops, list) and len(stops) > MOST_STOPS:
            raise PydanticCustomError("stop", f"Input should be at most {MOST_STOPS} strings")
        return stops

    @model_validator(mode="after")
    def _no_options_without_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only for stream=true", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def asked_tokens(self) -> int | None:
        """Most new tokens as the request names them."""
        raise NotImplementedError

    @property
    def asked_logprobs(self) -> int | None:
        """As in :class:`~kvmap.runtime.options.Options`."""
        raise NotImplementedError

    def default_tokens(self, most: int) -> int:
        """Most new tokens where the request names none and the server gives so many to a chat."""
        raise NotImplementedError

    def options(self, prompt_tokens: int, limit: int, most: int) -> Options:
        """What the engine is asked.

        Args:
            prompt_tokens: Tokens of the prompt.
            limit: Most positions.
            most: The server's default for a chat answer.

        Raises:
            APIError: The prompt is empty, or it and the answer are too long for the models.
        """
        where = self.prompt_field
        if not prompt_tokens:
            raise invalid(f"{where} is empty; give at least one token", where)
        asked = self.asked_tokens
        if prompt_tokens + (asked or 1) > limit:
            wanted = "at least one new one" if asked is None else f"{asked} new ones"
            raise invalid(
                f"{where} of {prompt_tokens} tokens and {wanted} exceed the {limit} positions of "
                "the models; shorten it or ask for fewer",
                where,
                "context_length_exceeded",
            )
        new = min(self.default_tokens(most), limit - prompt_tokens) if asked is None else asked
        least = self.min_tokens or 0
        if least > new:
            raise invalid(f"min_tokens={least} is more than the {new} new tokens", "min_tokens")
        return Options(
            max_new_tokens=new,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            seed=secrets.randbits(63) if self.seed is None else self.seed,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            min_tokens=least,
            ignore_eos=bool(self.ignore_eos),
            logprobs=self.asked_logprobs,
            mode=self.mode,
        )


def top_within_range(value: int | None, name: str) -> None:
    """Refuse more likeliest tokens than are reported."""
    if value is not None and not 0 <= value <= MAX_TOP:
        raise invalid(f"{name}={value} must be 0 to {MAX_TOP}", name)


def _require_neutral(name: str, value: Any) -> None:
    # 0 == False in Python, but a client that sends one for the other is mistaken.
    same = any(
        value == each and isinstance(value, bool) == isinstance(each, bool)
        for each in NEUTRAL[name]
    )
    if value is not None and not same:
        raise invalid(f"{name} is not supported; leave it out", name, "unsupported_parameter")


def _told(error: ErrorDetails) -> APIError:
    """One complaint of pydantic's in OpenAI's form."""
    name = ""
    for part in error["loc"]:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    if error["type"] == "extra_forbidden":
        return invalid(f"{name} is not a known parameter", name, "unknown_parameter")
    if error["type"] == "missing":
        return invalid(f"{name} is missing", name, "missing_required_parameter")
    complaint = COMPLAINTS.get(error["type"], error["msg"])
    return invalid(f"{_shown(name, error['input'])}: {complaint[0].lower()}{complaint[1:]}", name)


def _shown(name: str, value: Any) -> str:
    """A parameter and its value, unless that is long."""
    text = json.dumps(value, ensure_ascii=False)
    return f"{name}={text}" if len(text) <= LONGEST_SHOWN else name
