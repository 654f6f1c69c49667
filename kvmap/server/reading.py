"""Reading a request: who sends it, and what its body says."""

import hmac
import json
from typing import Any, NoReturn

from starlette.requests import Request

from kvmap.server.errors import APIError, invalid
from kvmap.server.settings import ServerSettings


def require_key(request: Request, settings: ServerSettings) -> None:
    """Refuse a request without the API key, if one is asked for.

    Raises:
        APIError: The key is missing or wrong.
    """
    if settings.api_key is None:
        return
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    # In constant time, and as bytes, since strings that are not ASCII cannot be compared so.
    fits = hmac.compare_digest(key.strip().encode(), settings.api_key.encode())
    if not (fits and scheme.lower() == "bearer"):
        raise APIError(
            401,
            "the API key is missing or wrong; send it as Authorization: Bearer …",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


async def read_json(request: Request, limit: int) -> Any:
    """The decoded body.

    Raises:
        APIError: It is no JSON, or longer than the limit in bytes.
        ClientDisconnect: The client went while it sent.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise APIError(415, "the body must be JSON; send Content-Type: application/json")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise _too_large(limit)
    try:
        values = json.loads(body.decode(), parse_constant=_refuse_constant)
        if b"\\u" in body:  # an escaped half of a surrogate pair is no character
            json.dumps(values, ensure_ascii=False).encode()
        return values
    except (ValueError, RecursionError) as error:  # also of bytes that are no UTF-8
        raise invalid(f"the body is not valid JSON: {error}") from None


def _too_large(limit: int) -> APIError:
    return APIError(
        413, f"the body is longer than {limit} bytes; shorten the prompt", code="body_too_large"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON's")
