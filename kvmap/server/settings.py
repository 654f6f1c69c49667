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
            ("port", 0 <= self.port < 65536, "0 to 65535"),
            ("queue", self.queue >= 0, "0 or more"),
            ("timeout_s", self.timeout_s > 0, "above 0"),
            ("drain_s", self.drain_s >= 0, "0 or more"),
            ("max_body_bytes", self.max_body_bytes >= 1, "1 or more"),
            ("max_tokens", self.max_tokens >= 1, "1 or more"),
            ("model", self.model != "", "a name, or null for the pair's"),
        )
        for name, fine, wanted in checks:
            if not fine:
                raise KVMapError(f"server.{name}={getattr(self, name)} must be {wanted}")
        if self.api_key == "":
            raise KVMapError("server.api_key is empty; give a key, or null to ask for none")
