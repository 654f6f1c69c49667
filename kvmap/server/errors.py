"""What a client is told instead of an answer, in the form of OpenAI's API."""

from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["completed", "refused", "busy", "unready", "timeout", "aborted", "failed"]
"""How a request ended, as the metrics count it."""


@dataclass
class APIError(Exception):
    """A request that gets an error.

    Attributes:
        status: HTTP status.
        message: One sentence that names the offending value and the way out.
        param: The parameter at fault.
        code: OpenAI's word for the case, where it has one.
        outcome: How the metrics count it.
        headers: Sent along.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    outcome: Outcome = "refused"
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The message."""
        return self.message

    @property
    def kind(self) -> str:
        """What clients find as ``type``."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, Any]:
        """The JSON that is sent."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> APIError:
    """A request that cannot be answered as it stands."""
    return APIError(400, message, param, code)


def unknown_model(asked: str, served: str) -> APIError:
    """The request names a model that is not here."""
    message = f"there is no model {asked}; this server has {served}"
    return APIError(404, message, "model", "model_not_found")


def busy(retry_after_s: int) -> APIError:
    """The queue is full."""
    return APIError(
        429,
        "the queue is full; try again later",
        code="queue_full",
        outcome="busy",
        headers={"Retry-After": str(retry_after_s)},
    )


def unready(why: str) -> APIError:
    """The server does not answer prompts, yet or any more."""
    return APIError(503, why, code="not_ready", outcome="unready", headers={"Retry-After": "5"})


def timed_out(seconds: float) -> APIError:
    """A request took too long."""
    return APIError(
        504,
        f"the request took more than {seconds:g} s; ask for fewer tokens or try again later",
        code="timeout",
        outcome="timeout",
    )


def failed() -> APIError:
    """A defect of ours; what it was stands in the log."""
    return APIError(
        500, "the server failed on this request", code="internal_error", outcome="failed"
    )
