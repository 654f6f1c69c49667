"""How an engine runs."""

from dataclasses import dataclass, field

from kvmap.errors import KVMapError
from kvmap.runtime.options import MODES, Mode
from kvmap.runtime.schedule import Adaptive, Schedule


@dataclass(frozen=True)
class Repair:
    """Which prompt tokens the target computes itself, over the mapped rest.

    Attributes:
        tokens: Those at the end; the last one always is, since there are no first logits without.
        prefix: Those at the start, where attention sinks are; being a prefix they are exact.
    """

    tokens: int = 32
    prefix: int = 0

    def __str__(self) -> str:
        """As in the names of arms."""
        return f"repair {self.tokens}" + (f" + prefix {self.prefix}" if self.prefix else "")

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        for name in ("tokens", "prefix"):
            if getattr(self, name) < 0:
                raise KVMapError(
                    f"repair.{name}={getattr(self, name)} must not be negative; use 0 or more"
                )


@dataclass(frozen=True)
class Settings:
    """How an engine answers; what a request may change is in :mod:`kvmap.runtime.options`.

    Attributes:
        repair: Which prompt tokens the target computes itself.
        schedule: How many tokens the draft proposes.
        confidence: A block ends after a token that the draft gave less than this probability.
        mode: ``mapped``, ``target`` or ``source``, where a request names none.
        guard: Nats/token by which the target may find the repaired tokens worse than the source
            does before the prompt is read natively; None for no guard.
        native_below: Prompts (their new tokens) shorter than this are read by the target itself.
        chunk: Tokens that are read, moved and mapped at a time; 0 for all at once.
        session_bytes: Memory for conversations at rest; 0 keeps none.
        mapper_dtype: In which the mapper computes: ``float32``, ``bfloat16``, ``float16``, or
            ``auto``, the target's own.
        compile: Whether decoding steps are compiled (captured as graphs on a GPU).
    """

    repair: Repair = field(default_factory=Repair)
    schedule: Schedule = field(default_factory=Adaptive)
    confidence: float = 0.4
    mode: Mode = "mapped"
    guard: float | None = None
    native_below: int = 0
    chunk: int = 0
    session_bytes: int = 1 << 30
    mapper_dtype: str = "float32"
    compile: bool = False

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        checks = (
            ("confidence", 0 <= self.confidence < 1, "at least 0 and below 1"),
            ("mode", self.mode in MODES, "one of " + ", ".join(MODES)),
            ("native_below", self.native_below >= 0, "0 or more tokens"),
            ("chunk", self.chunk >= 0, "0 or more tokens"),
            ("session_bytes", self.session_bytes >= 0, "0 or more bytes"),
        )
        for name, fine, wanted in checks:
            if not fine:
                raise KVMapError(f"{name}={getattr(self, name)} must be {wanted}")
