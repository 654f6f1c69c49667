"""What matters of an evaluation, in sentences."""

from collections.abc import Sequence

from kvmap.benchmark.result import BenchmarkResult, ReadOrMap
from kvmap.evaluation.findings import disagreement
from kvmap.evaluation.report.words import interval, mapper_name, right, times
from kvmap.evaluation.result import ArmResult, EvaluationResult, Replacement

WORTH_NAMING = 0.1
"""Share of what is missing to the target that a part has to hold to be named."""


def verdict(result: EvaluationResult, benchmark: BenchmarkResult | None) -> list[str]:
    """What is served, what it is worth, what it costs, what is left, whether to serve it."""
    point = result.operating_point
    served = result.find("mapped")
    if served is None or served.continuation is None:
        raise ValueError("an evaluation without its operating point")
    nothing = point.chosen_on == "nothing"
    chosen = "as asked for" if nothing else f"chosen on {point.chosen_on}"
    said = [
        f"Operating point: {mapper_name(result.mapper)}, repair {point.repair} "
        f"({served.repaired_share:.0%} of the prompt), {chosen}, all figures on "
        f"the {point.reported_on} set unless they say otherwise."
    ]
    said.append(_worth(result))
    if benchmark is not None:
        said += _speed(benchmark)
    if result.replacements:
        said.append(_left(result.replacements, served.continuation.above_target.value))
    said += [f"Not as it should be: {each.what} ({each.measured})."
             for each in result.findings if each.holds is False]  # fmt: skip
    said.append(_advice(result))
    return said


def _left(parts: Sequence[Replacement], missing: float) -> str:
    """The layer-wise reason for the nats/token that are missing to the target."""
    passages = parts[0].nll_gain.documents
    least = WORTH_NAMING * missing
    surely = [e for e in parts if e.nll_gain.low > 0 and e.nll_gain.value >= least]
    if not surely:
        return (
            f"What is left cannot be laid to single layers, keys or values on {passages} passages."
        )
    worst = sorted(surely, key=lambda each: -each.nll_gain.value)[:3]
    named = ", ".join(f"{e.part} ({interval(e.nll_gain, 3)} nats/token)" for e in worst)
    return f"What is left lies mostly in: {named}, saved when exact, on {passages} passages."


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
    said = (
        f"At {at.length} prompt tokens the first token comes {times(arm.ttft)} sooner than from "
        f"the target alone ({interval(arm.ttft)}, cold), an answer of {benchmark.new_tokens} "
        f"tokens {times(arm.total)} ({interval(arm.total)})"
    )
    source = at.find("source")
    if source is not None:
        said += f"; from the source alone {times(source.ttft)} and {times(source.total)}"
    return [f"{said}.", *_pays(benchmark.mapping)]


def _pays(points: Sequence[ReadOrMap]) -> list[str]:
    """From which length on mapping is faster than reading."""
    if not points:
        return []
    ordered = sorted(points, key=lambda each: each.length)
    slower = [each.length for each in ordered if each.cold.low <= 1]
    if not slower:
        return [f"A cold first token by mapping is sooner from {ordered[0].length} tokens on."]
    faster = [each.length for each in ordered if each.length > max(slower)]
    if not faster:
        return [
            f"Up to {ordered[-1].length} tokens a cold first token by mapping is not surely sooner "
            "than by reading."
        ]
    return [
        f"Cold, mapping is surely sooner than reading from {min(faster)} prompt tokens on, "
        f"and not surely at {max(slower)}."
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
        better = f"better than the source alone by {interval(below, 3)} nats/token"
        said = _disagreement(served)
        if said is not None:
            return f"Serve it with care: {better}, but it {said}."
        return f"Worth serving: {better}."
    if below.high < 0:
        return (
            f"Not worth serving: worse than the source alone by {interval(below, 3)} nats/token "
            "(negative), which is faster still."
        )
    return (
        f"Not better than the source alone so far as can be told ({interval(below, 3)} "
        "nats/token); evaluate more passages, or train a better mapper."
    )


def _disagreement(served: ArmResult) -> str | None:
    """What likelihood and look-ups of the served arm disagree on."""
    text, lookups = served.continuation, served.lookups
    likelihood = (text.gap_closed or text.context_used) if text else None
    return disagreement(likelihood, lookups.floor_normalised if lookups else None)
