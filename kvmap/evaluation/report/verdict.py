"""What matters of an evaluation, in sentences."""

from kvmap.benchmark.result import BenchmarkResult
from kvmap.evaluation.report.words import interval, mapper_name, right, times
from kvmap.evaluation.result import EvaluationResult


def verdict(result: EvaluationResult, benchmark: BenchmarkResult | None) -> list[str]:
    """What is served, what it is worth, what it costs, what is left, whether to serve it."""
    point = result.operating_point
    served = result.find("mapped")
    if served is None or served.continuation is None:
        raise ValueError("an evaluation without its operating point")
    said = [
        f"Operating point: {mapper_name(result.mapper)}, repair {point.repair} "
        f"({served.repaired_share:.0%} of the prompt), chosen on {point.chosen_on}, all figures on "
        f"the {point.reported_on} set unless they say otherwise."
    ]
    said.append(_worth(result))
    if benchmark is not None:
        said += _speed(benchmark)
    parts = [each for each in result.replacements if each.nll_gain.low > 0]
    if parts:
        worst = sorted(parts, key=lambda each: -each.nll_gain.value)[:3]
        named = ", ".join(f"{e.part} ({interval(e.nll_gain, 3)} nats/token)" for e in worst)
        said.append(f"What is left lies mostly in: {named}, saved when exact.")
    said += [f"Not as it should be: {each.what} ({each.measured})."
             for each in result.findings if each.holds is False]  # fmt: skip
    said.append(_advice(result))
    return said


def _worth(result: EvaluationResult) -> str:
    served, source, target = result.find("mapped"), result.find("source"), result.find("target")
    assert served is not None
    text = served.continuation
    assert text is not None
    if text.gap_closed is not None:
        worth = (
            f"It closes {interval(text.gap_closed)} of the distance from the source alone (0) to "
            "the target alone (1) in likelihood"
        )
    else:
        worth = (
            "Source and target are too close for a share of their gap; of what the prompt tells it "
            f"uses {interval(text.context_used)}"
        )
    if served.lookups and source and source.lookups and target and target.lookups:
        worth += (
            f", and answers {right(served.lookups)} look-ups (source {right(source.lookups)}, "
            f"target {right(target.lookups)})"
        )
    return worth + "."


def _speed(benchmark: BenchmarkResult) -> list[str]:
    at = max(benchmark.answers, key=lambda each: each.length, default=None)
    arm = at.find("cold") if at else None
    if at is None or arm is None:
        return []
    return [
        f"At {at.length} prompt tokens the first token comes {times(arm.ttft)} sooner than from "
        f"the target alone ({interval(arm.ttft)}, cold), an answer of {benchmark.new_tokens} "
        f"tokens {times(arm.total)} ({interval(arm.total)})."
    ]


def _advice(result: EvaluationResult) -> str:
    served = result.find("mapped")
    mismatched = result.find("mismatched")
    assert served is not None
    assert served.continuation is not None
    below = served.continuation.below_source
    right_cache = mismatched is None or mismatched.continuation is None or (
        mismatched.continuation.nll.low > served.continuation.nll.high
    )  # fmt: skip
    if not right_cache:
        return "Do not serve it: another prompt's cache does as well as the right one."
    if below.low > 0:
        return f"Worth serving: better than the source alone by {interval(below, 3)} nats/token."
    if below.high < 0:
        return (
            f"Not worth serving: worse than the source alone by {interval(below, 3)} nats/token "
            "(negative), which is faster still."
        )
    return (
        f"Not better than the source alone so far as can be told ({interval(below, 3)} "
        "nats/token); evaluate more passages, or train a better mapper."
    )
