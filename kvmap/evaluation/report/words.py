"""Numbers as words."""

from kvmap.evaluation.result import AnswersResult, MapperFacts
from kvmap.evaluation.statistics import Estimate


def interval(estimate: Estimate | None, digits: int = 2) -> str:
    """``0.75 [0.70, 0.80]``, or a dash."""
    if estimate is None:
        return "-"
    value, low, high = (f"{x:.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def times(ratio: Estimate) -> str:
    """``3.2x``."""
    return f"{ratio.value:.2g}x" if ratio.value < 10 else f"{ratio.value:.0f}x"


def right(answers: AnswersResult | None) -> str:
    """``981 of 1004``, or a dash."""
    return "-" if answers is None else f"{sum(answers.hits)} of {answers.items}"


def mapper_name(facts: MapperFacts) -> str:
    """A mapper in one line: its family and what sets it apart from the others of its family."""
    shown = ("k", "inputs", "ridge_lambda", "code", "hidden", "epochs")
    arguments = facts.arguments
    said = [f"{name}={arguments[name]}" for name in shown if name in arguments]
    return " ".join([facts.family, *said])
