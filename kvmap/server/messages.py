"""One message of a conversation."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic_core import PydanticCustomError


class Message(BaseModel):
    """One message; its content is text, or a list of text parts, which are joined.

    Keys that are null are taken as absent: clients send answers back as they received them.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None}

    @field_validator("role")
    @classmethod
    def _one_word_for_system(cls, value: str) -> str:
        return "system" if value == "developer" else value  # templates know the older word

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        for part in value:
            fine = isinstance(part, dict) and part.keys() == {"type", "text"}
            if not fine or part["type"] != "text" or not isinstance(part["text"], str):
                raise PydanticCustomError(
                    "content", 'parts must be {"type": "text", "text": "…"}: the models read text'
                )
        return "".join(part["text"] for part in value)
