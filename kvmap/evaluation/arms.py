"""Arms: the ways of answering that are compared on identical items."""

from dataclasses import dataclass
from typing import Literal

from kvmap.errors import KVMapError

Role = Literal["target", "source", "exact", "mapped", "depth_nearest", "mismatched", "window"]
Answerer = Literal["target", "source"]
MAPPING: tuple[Role, ...] = ("mapped", "mismatched", "depth_nearest")
NATIVE: tuple[Role, ...] = ("target", "source")


@dataclass(frozen=True)
class Arm:
    """One way of answering.

    Attributes:
        role: ``target`` (its own prefill), ``source`` (the small model alone), ``exact`` (the
            target's own KV through the code path of mapped KV), ``mapped``, ``depth_nearest``,
            ``mismatched`` (another prompt's mapped KV) or ``window`` (no KV but the repaired).
        repair: Last prompt tokens r that the target computes itself; the last one always is.
        prefix: First prompt tokens p that it computes itself.
        mapper: Key of the mapper whose KV it reads, empty for roles that read none.
        exact: A part of the mapped KV put right: ``keys``, ``values``, ``layer 3``; empty for none.

    Raises:
        KVMapError: ``repair`` or ``prefix`` is negative.
    """

    role: Role
    repair: int = 0
    prefix: int = 0
    mapper: str = ""
    exact: str = ""

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        for what in ("repair", "prefix"):
            if getattr(self, what) < 0:
                raise KVMapError(f"{what}={getattr(self, what)} must not be negative")

    @property
    def name(self) -> str:
        """How the arm is called in tables: its role, with what is repaired."""
        if self.native:
            return self.role
        words: list[str] = [self.role]
        if self.role == "window":
            words[0] = f"window {max(self.repair, 1)}"
        elif self.repair:
            words.append(f"repair {self.repair}")
        if self.prefix:
            words.append(f"prefix {self.prefix}")
        if self.exact:
            words.append(f"exact {self.exact}")
        return " + ".join(words)

    @property
    def native(self) -> bool:
        """Whether one ordinary forward answers, without a cache of ours."""
        return self.role in NATIVE

    @property
    def answerer(self) -> Answerer:
        """The model that answers."""
        return "source" if self.role == "source" else "target"

    def repaired_tail(self, prompt: int) -> int:
        """``r_eff = min(max(r, 1), P)``: without the last token there are no first logits."""
        return min(max(self.repair, 1), prompt)

    def kept(self, prompt: int) -> int:
        """Prompt tokens, from the first, whose KV stands before the repaired tail.

        All up to the tail; for ``window`` only the prefix.
        """
        rest = prompt - self.repaired_tail(prompt)
        return min(self.prefix, rest) if self.role == "window" else rest

    def repaired_share(self, prompt: int) -> float:
        """Share of a prompt's tokens that the answering model computes itself."""
        if self.native:
            return 1.0
        tail = self.repaired_tail(prompt)
        return (tail + min(self.prefix, prompt - tail)) / prompt
