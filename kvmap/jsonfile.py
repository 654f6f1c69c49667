"""JSON files that are written whole or not at all, and errors that name the file."""

import json
import math
import os
from pathlib import Path
from typing import Any

from kvmap.errors import KVMapError


def write_json(path: Path, value: Any) -> None:
    """Write plain values atomically; a float that is not a number becomes null."""
    partial = path.with_name(f"{path.name}.partial")
    text = json.dumps(_plain(value), indent=2, allow_nan=False)
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path, what: str) -> Any:
    """Read plain values.

    Args:
        path: The file.
        what: What it should be, for the error's sentence.

    Raises:
        KVMapError: The file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KVMapError(f"{path} cannot be read as {what} ({error}); check the path") from error
    except (ValueError, RecursionError) as error:
        raise KVMapError(
            f"{path} is damaged: it is not {what} ({error}); delete it and make it again"
        ) from error


def read_object(path: Path, what: str, *needed: str) -> dict[str, Any]:
    """Read an object that has certain keys.

    Args:
        path: The file.
        what: What it should be, for the error's sentence.
        needed: The keys.

    Raises:
        KVMapError: The file is missing, unreadable, no JSON object, or lacks a key.
    """
    values = read_json(path, what)
    missing = [key for key in needed if not isinstance(values, dict) or key not in values]
    if missing or not isinstance(values, dict):
        lacks = f"it lacks {', '.join(missing)}" if missing else "it is no object"
        raise KVMapError(
            f"{path} is damaged: it is not {what} ({lacks}); delete it and make it again"
        )
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
