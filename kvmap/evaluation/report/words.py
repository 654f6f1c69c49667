"""Numbers and mappers as words."""

from collections.abc import Sequence
from pathlib import Path

from kvmap.evaluation.result import AnswersResult, MapperFacts
from kvmap.evaluation.statistics import Estimate, McNemar

ARGUMENTS = ("k", "inputs", "ridge_lambda", "code", "hidden", "epochs")
SHORT = {"ridge_lambda": "λ"}


def interval(estimate: Estimate | None, digits: int = 2) -> str:
    """``0.75 [0.70, 0.80]``, ``0.75 (of 2)`` where that is too few documents, or a dash."""
    return "-" if estimate is None else estimate.told(digits)


def times(ratio: Estimate) -> str:
    """``3.2x``."""
    return f"{ratio.value:.2g}x" if ratio.value < 10 else f"{ratio.value:.0f}x"


def right(answers: AnswersResult | None) -> str:
    """``981 of 1004``, or a dash."""
    return "-" if answers is None else f"{sum(answers.hits)} of {answers.items}"


def split(test: McNemar) -> str:
    """``+12 -3, p = 0.035``: items that only the one, only the other answered right."""
    p = "p < 0.001" if test.p < 0.001 else f"p = {test.p:.3f}"
    return f"+{test.gained} -{test.lost}, {p}"


def mapper_name(facts: MapperFacts) -> str:
    """A mapper in one line: its family and the arguments that may differ within it."""
    return _named(facts, [name for name in ARGUMENTS if name in facts.arguments])


def mapper_names(mappers: Sequence[MapperFacts]) -> list[str]:
    """Mappers in one line each: their family and what sets them apart from the others here.

    Mappers that nothing sets apart have their run's folder told.
    """
    names = []
    for each in mappers:
        alike = [other.arguments for other in mappers if other.family == each.family]
        telling = [
            name
            for name in ARGUMENTS
            if name in each.arguments and len({str(a.get(name)) for a in alike}) > 1
        ]
        names.append(_named(each, telling))
    return [
        name if names.count(name) == 1 else f"{name} ({_run(each.export)})"
        for name, each in zip(names, mappers, strict=True)
    ]


def _named(facts: MapperFacts, shown: Sequence[str]) -> str:
    said = [f"{SHORT.get(name, name)}={facts.arguments[name]}" for name in shown]
    return " ".join([facts.family, *said, *["refined"] * facts.refined])


def _run(export: str) -> str:
    parts = [part for part in Path(export).parts if part != "export"]
    return "/".join(parts[-2:])
