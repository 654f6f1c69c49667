"""How the server runs."""

from dataclasses import dataclass, field

from kvmap.errors import KVMapError


@dataclass(frozen=True)
class ServerSettings:
    """How the server runs.

    Attributes:
        host: Address to listen on; only this machine reaches ``127.0.0.1``.
        port: Port to listen on; 0 for any free one.
        model: The name that clients give; None for the pair's.
        api_key: What clients must send as a bearer token; None asks for nothing.
        queue: Requests that may wait while one is answered.
        timeout_s: Seconds that a request may take, waiting included.
        drain_s: Seconds that accepted requests have left to finish after SIGTERM.
        max_body_bytes: Largest request body.
        max_tokens: New tokens of a chat answer where the request names no number.

    Raises:
        KVMapError: A value outside its range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    queue: int = 64
    timeout_s: float = 600.0
    drain_s: float = 30.0
    max_body_bytes: int = 4_194_304
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        checks = (
            ("host", _is_text(self.host), "an address or a name"),
            ("port", type(self.port) is int and 0 <= self.port < 65536, "0 to 65535"),
            ("model", self.model is None or _is_text(self.model), "a name, or null"),
            ("queue", type(self.queue) is int and self.queue >= 0, "0 or more"),
            ("timeout_s", _is_number(self.timeout_s) and self.timeout_s > 0, "above 0"),
            ("drain_s", _is_number(self.drain_s) and self.drain_s >= 0, "0 or more"),
            ("max_body_bytes", _is_positive(self.max_body_bytes), "1 or more"),
            ("max_tokens", _is_positive(self.max_tokens), "1 or more"),
        )
        for name, fine, wanted in checks:
            if not fine:
                raise KVMapError(f"server.{name}={getattr(self, name)} must be {wanted}")
        if self.api_key is not None and not _is_text(self.api_key):  # which is not to be shown
            raise KVMapError("server.api_key must be text in quotes, or null to ask for none")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and value >= 1
