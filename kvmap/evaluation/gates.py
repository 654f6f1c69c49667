"""Requirements on a mapper, each a number that the bad end of an interval has to keep."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvmap.errors import KVMapError
from kvmap.evaluation.result import ArmResult, EvaluationResult
from kvmap.evaluation.statistics import Estimate

PLACES: dict[str, tuple[str, str]] = {
    "gap_closed": ("continuation", "gap_closed"),
    "context_used": ("continuation", "context_used"),
    "below_source": ("continuation", "below_source"),
    "same_top": ("continuation", "same_top"),
    "lookups": ("lookups", "accuracy"),
    "lookups_retention": ("lookups", "retention"),
    "lookups_floor_normalised": ("lookups", "floor_normalised"),
    "choices": ("choices", "accuracy"),
    "choices_floor_normalised": ("choices", "floor_normalised"),
    "greedy_same_tokens": ("greedy", "same_tokens"),
}
"""What can be required of the served arm, by its name in the config."""


@dataclass(frozen=True)
class Gate:
    """One requirement on the operating point, at the lower end of the 95% interval.

    Attributes:
        name: What is required.
        least: The least value.
        found: What was measured; None where it is not defined.
    """

    name: str
    least: float
    found: Estimate | None

    @property
    def passed(self) -> bool:
        """Whether the lower end is high enough; what is not defined has not passed."""
        return self.found is not None and self.found.low >= self.least

    def __str__(self) -> str:
        """One line."""
        word = "passed" if self.passed else "FAILED"
        return f"gate {word}: {self.name} {self.found or 'is not defined'}, wanted {self.least}"


def required(wanted: Mapping[str, float | None]) -> dict[str, float]:
    """What is asked for, checked before an evaluation takes its time.

    Args:
        wanted: Least value by name; None asks for nothing.

    Raises:
        KVMapError: A name is unknown, or its least value is no number.
    """
    if not isinstance(wanted, Mapping):
        raise KVMapError(f"gates={wanted} names no requirement; write gates.gap_closed=0.6")
    asked = {name: least for name, least in wanted.items() if least is not None}
    for name, least in asked.items():
        if isinstance(least, bool) or not isinstance(least, int | float):
            raise KVMapError(f"gates.{name}={least} must be a number")
        if name not in PLACES:
            raise KVMapError(f"gates.{name} is unknown; choose from {', '.join(sorted(PLACES))}")
    return {name: float(least) for name, least in asked.items()}


def gates(result: EvaluationResult, wanted: Mapping[str, float | None]) -> list[Gate]:
    """Hold an evaluation against requirements.

    Args:
        result: The evaluation.
        wanted: Least value by name; None asks for nothing.

    Raises:
        KVMapError: A name is unknown, or its least value is no number.
    """
    arm = result.find("mapped")
    if arm is None:
        raise ValueError("an evaluation without its operating point")
    return [
        Gate(name, least, _estimate(arm, *PLACES[name])) for name, least in required(wanted).items()
    ]


def _estimate(arm: ArmResult, task: str, name: str) -> Estimate | None:
    found = getattr(arm, task)
    return None if found is None else getattr(found, name)
