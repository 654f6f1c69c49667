"""How much a benchmark measures."""

from dataclasses import dataclass, field, replace

from kvmap.arguments import require_switch, require_whole, require_wholes
from kvmap.errors import KVMapError


@dataclass(frozen=True)
class BenchmarkSettings:
    """How much of everything.

    Attributes:
        lengths: Tokens of the prompts that all arms answer.
        prompts: Prompts of each length; 0 for no answers.
        new_tokens: Tokens of an answer.
        map_lengths: Tokens of prompts whose KV is mapped and read, without an answer.
        map_repeats: Most repeats of each.
        map_seconds: What one of these lengths may take. Long ones get fewer repeats, at least two;
            one that would take longer even so is left out, and the result says so.
        transformers: Whether transformers' ``generate`` answers too, alone and assisted.
        seed: Of the orders of arms and of random tokens.

    Raises:
        KVMapError: A number has no meaning.
    """

    lengths: list[int] = field(default_factory=lambda: [512, 1024, 2048, 4096])
    prompts: int = 8
    new_tokens: int = 128
    map_lengths: list[int] = field(default_factory=lambda: [2**power for power in range(6, 16)])
    map_repeats: int = 5
    map_seconds: float = 600.0
    transformers: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        for name in ("lengths", "map_lengths"):
            require_wholes(name, getattr(self, name), 2)
        for name, least in (("prompts", 0), ("new_tokens", 2), ("map_repeats", 2), ("seed", 0)):
            require_whole(name, getattr(self, name), least)
        require_switch("transformers", self.transformers)
        if self.prompts == 1:
            raise KVMapError("prompts=1 gives no interval; use 0, or 2 and more")
        seconds = self.map_seconds
        if not isinstance(seconds, float | int) or not 0 < seconds < float("inf"):
            raise KVMapError(f"map_seconds={seconds} must be a number of seconds above 0")

    def quick(self) -> "BenchmarkSettings":
        """Very little of the same: the shortest and the longest prompts, and wide intervals."""
        lengths = sorted(self.lengths)
        return replace(
            self,
            lengths=list(dict.fromkeys((*lengths[:1], *lengths[-1:]))),
            prompts=min(self.prompts, 6),
            new_tokens=min(self.new_tokens, 32),
            map_lengths=[length for length in self.map_lengths if length <= 1024],
            map_repeats=min(self.map_repeats, 3),
            map_seconds=min(self.map_seconds, 5.0),
            transformers=False,
        )
