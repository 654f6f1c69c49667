"""The layer-wise reason: exact parts put in place of mapped ones, one at a time."""

from dataclasses import replace

from kvmap.evaluation.arms import Arm
from kvmap.evaluation.result import Replacement
from kvmap.evaluation.summary import Summary


def replacement_arms(served: Arm, layers: int) -> list[Arm]:
    """The served arm with exact keys, with exact values, and with each layer exact."""
    parts = ["keys", "values", *(f"layer {layer}" for layer in range(layers))]
    return [replace(served, exact=part) for part in parts]


def replacements(summary: Summary, served: Arm, arms: list[Arm]) -> list[Replacement]:
    """What each exact part changes.

    Args:
        summary: All scores on the test set.
        served: The operating point.
        arms: Those of :func:`replacement_arms` that were measured.
    """
    gains = [(arm.exact, *summary.gain(arm, served)) for arm in arms]
    return [Replacement(part, nll, closed) for part, nll, closed in gains]
