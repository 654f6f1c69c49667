"""How a mapper is refined."""

from dataclasses import dataclass

from kvmap.arguments import require_step_size, require_whole
from kvmap.errors import KVMapError


@dataclass(frozen=True)
class RefinementSettings:
    """How a mapper is refined.

    Attributes:
        lr: Adam's first step size; it falls to zero along a cosine.
        epochs: Passes over the fit documents.
        batch_size: Documents per step.
        cuts: Prompts that each document of a step is cut into, at places drawn anew.
        shortest: Tokens of the shortest prompt.
        continuation: Tokens after a prompt at which the target's two answers are compared.

    Raises:
        KVMapError: A number that makes no sense.
    """

    lr: float = 3e-4
    epochs: int = 20
    batch_size: int = 4
    cuts: int = 1
    shortest: int = 256
    continuation: int = 96

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        require_step_size("refinement.lr", self.lr)
        for name in ("epochs", "batch_size", "cuts", "shortest", "continuation"):
            require_whole(f"refinement.{name}", getattr(self, name), 1)

    def require_length(self, length: int) -> None:
        """Refuse documents in which no prompt has room.

        Raises:
            KVMapError: They are too short.
        """
        needed = self.shortest + self.continuation
        if length < needed:
            raise KVMapError(
                f"documents of data.length={length} tokens hold no prompt of "
                f"refinement.shortest={self.shortest} and its "
                f"refinement.continuation={self.continuation}; lower these, or use longer documents"
            )
