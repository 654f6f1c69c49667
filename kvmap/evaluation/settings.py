"""How much is measured, and what the operating point is chosen from."""

from dataclasses import dataclass, field, fields, replace

from kvmap.arguments import require_whole, require_wholes
from kvmap.benchmark.settings import BenchmarkSettings
from kvmap.errors import KVMapError


@dataclass(frozen=True)
class Sizes:
    """How much of everything.

    Attributes:
        prompt: P, tokens of a prompt.
        continuation: Tokens after it that are scored.
        passages: Test passages for continuation and choices.
        choice_tokens: Tokens of each of four continuations.
        lookups: Least number of look-ups for target, source, operating point and window.
        other_lookups: Least number of look-ups for the other arms and the repair curve.
        lookup_distance: Least tokens between a binding and its question.
        greedy: Test passages whose continuation is written, by the served arm and the controls.
        greedy_tokens: Tokens written.
        development: Development passages; 0 chooses nothing.
        replacement: Test passages for the layer-wise reason; 0 leaves it out.
        conversations: Test passages cut into turns; 0 leaves the handoff out.
        turns: Turns of a conversation.
        turn_tokens: Tokens of a turn.
        block: Passages whose KV is in memory at once.

    Raises:
        KVMapError: A size has no meaning.
    """

    prompt: int = 960
    continuation: int = 64
    passages: int = 200
    choice_tokens: int = 32
    lookups: int = 1000
    other_lookups: int = 256
    lookup_distance: int = 150
    greedy: int = 64
    greedy_tokens: int = 32
    development: int = 32
    replacement: int = 32
    conversations: int = 24
    turns: int = 12
    turn_tokens: int = 80
    block: int = 8

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        least = {
            "prompt": 2,
            "continuation": 2,
            "passages": 5,
            "choice_tokens": 1,
            "lookup_distance": 1,
            "greedy_tokens": 1,
            "turns": 2,
            "turn_tokens": 2,
            "block": 2,
        }
        for each in fields(self):
            floor = least.get(each.name, 0)
            require_whole(f"sizes.{each.name}", getattr(self, each.name), floor)
        for name in ("choice_tokens", "greedy_tokens"):
            if getattr(self, name) > self.continuation:
                raise KVMapError(
                    f"sizes.{name}={getattr(self, name)} must be at most "
                    f"sizes.continuation={self.continuation}"
                )
        for name in ("greedy", "replacement"):
            if getattr(self, name) > self.passages:
                raise KVMapError(
                    f"sizes.{name}={getattr(self, name)} must be at most "
                    f"sizes.passages={self.passages}"
                )
        for name in ("development", "replacement", "conversations", "greedy"):
            if getattr(self, name) == 1:
                raise KVMapError(f"sizes.{name}=1 gives no interval; use 0, or 2 and more")

    @property
    def length(self) -> int:
        """T, tokens of a passage."""
        return max(self.prompt + self.continuation, self.conversation)

    @property
    def conversation(self) -> int:
        """Tokens of a conversation."""
        return self.turns * self.turn_tokens if self.conversations else 0

    def quick(self) -> "Sizes":
        """The same prompts, few of them: under two minutes, and wide intervals."""
        few = {
            "passages": 16,
            "lookups": 96,
            "other_lookups": 96,
            "greedy": 4,
            "development": 8,
            "replacement": 6,
            "conversations": 6,
        }
        return replace(self, **{name: min(getattr(self, name), n) for name, n in few.items()})


@dataclass(frozen=True)
class Search:
    """What the operating point is chosen from, on the development set.

    Attributes:
        repairs: Repaired last tokens r.
        prefixes: Repaired first tokens p.
        tolerance: Score that is given up for fewer repaired tokens.

    Raises:
        KVMapError: There is nothing to choose from.
    """

    repairs: list[int] = field(default_factory=lambda: [32])
    prefixes: list[int] = field(default_factory=lambda: [0])
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        """Refuse an empty search."""
        for name in ("repairs", "prefixes"):
            values = getattr(self, name)
            if not values:
                raise KVMapError(f"search.{name} is empty; name how many tokens to repair")
            require_wholes(f"search.{name}", values, 0)


def brief() -> BenchmarkSettings:
    """As much of a benchmark as an evaluation carries along."""
    return BenchmarkSettings(
        lengths=[128, 256, 512, 960],
        prompts=6,
        new_tokens=64,
        map_lengths=[64, 128, 256, 512, 1024, 2048, 4096],
        map_seconds=20.0,
    )


@dataclass(frozen=True)
class Settings:
    """All that decides an evaluation besides models, mapper and text.

    Attributes:
        sizes: How much is measured.
        search: What the operating point is chosen from.
        speed: The benchmark at the operating point; without prompts no speed is measured.
        curve: Repaired tokens of the repair curve.
        seed: Of choices' places and of the bootstrap.
        resamples: Draws of the bootstrap.
    """

    sizes: Sizes = field(default_factory=Sizes)
    search: Search = field(default_factory=Search)
    speed: BenchmarkSettings = field(default_factory=brief)
    curve: list[int] = field(default_factory=lambda: [0, 8, 16, 32, 64])
    seed: int = 0
    resamples: int = 2000

    def __post_init__(self) -> None:
        """Refuse look-ups that a repaired tail could answer, and negative numbers."""
        require_wholes("curve", self.curve, 0)
        require_whole("seed", self.seed, 0)
        require_whole("resamples", self.resamples, 100)
        most = max((*self.curve, *self.search.repairs))
        if most >= self.sizes.lookup_distance:
            raise KVMapError(
                f"sizes.lookup_distance={self.sizes.lookup_distance} must exceed every repair "
                f"({most}), or the repaired tokens hold the answer"
            )
        lengths = self.speed.lengths
        if self.speed.prompts and lengths and min(lengths) > self.sizes.length:
            raise KVMapError(
                f"speed.lengths={lengths} all exceed the passages of {self.sizes.length} tokens; "
                "name a shorter one, or leave speed out with speed.prompts=0"
            )
