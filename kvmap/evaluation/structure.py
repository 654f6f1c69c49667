"""Dataclasses from the plain values that JSON holds."""

import types
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from kvmap.errors import KVMapError
from kvmap.jsonfile import read_json

T = TypeVar("T")


def structure(kind: type[T], value: Any) -> T:
    """Build a value of a type from plain ones.

    Args:
        kind: A dataclass, named tuple, ``list[X]``, ``tuple[X, ...]``, ``dict[str, X]``, ``X |
            None``, ``Literal`` or a plain type.
        value: What :func:`dataclasses.asdict` and JSON made of such a value.

    Raises:
        TypeError: The value is not of that form.
    """
    return cast(T, _structure(kind, value))


def read_structured(kind: type[T], path: Path, what: str, version: int) -> T:
    """A dataclass that was written to a JSON file under a ``format``.

    Args:
        kind: The dataclass.
        path: The file.
        what: What it is, for messages.
        version: The format that is read.

    Raises:
        KVMapError: It is missing, damaged or of another version.
    """
    values = read_json(path, what)
    found = values.get("format") if isinstance(values, dict) else None
    if found != version:
        raise KVMapError(f"{path} has format {found}, this kvmap reads {version}; evaluate again")
    try:
        return structure(kind, values)
    except (TypeError, AttributeError, KVMapError) as error:
        raise KVMapError(f"{path} is damaged ({error}); evaluate again") from error


def _structure(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or origin is Literal:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        return _structure(next(each for each in inner if each is not type(None)), value)
    if is_dataclass(kind):
        return _record(cast(type, kind), value)
    if origin in (list, tuple, Sequence):
        _require(isinstance(value, list | tuple), kind, value)
        items = [_structure(inner[0], each) for each in value]
        return tuple(items) if origin is tuple else items
    if origin is dict:
        _require(isinstance(value, dict), kind, value)
        return {key: _structure(inner[1], each) for key, each in value.items()}
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    _require(isinstance(value, kind), kind, value)
    return value


def _record(kind: type, value: Any) -> Any:
    _require(isinstance(value, dict), kind, value)
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    _require(set(value) <= set(names), kind, value)
    missing = [each.name for each in fields(kind) if _needed(each) and each.name not in value]
    if missing:
        raise TypeError(f"it lacks {', '.join(missing)}")
    return kind(**{name: _structure(hints[name], value[name]) for name in names if name in value})


def _needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _require(fine: bool, kind: Any, value: Any) -> None:
    if not fine:
        raise TypeError(f"{str(value)[:60]} is no {getattr(kind, '__name__', kind)}")
