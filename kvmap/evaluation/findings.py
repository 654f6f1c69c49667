"""What should be seen of a mapper, and whether it was."""

from kvmap.evaluation.arms import Arm
from kvmap.evaluation.result import ArmResult, Finding
from kvmap.evaluation.statistics import Estimate
from kvmap.evaluation.summary import Summary

WELL = 0.5
"""Share of the target's advantage from which a mapper is said to do well."""


def findings(summary: Summary, served: Arm) -> list[Finding]:
    """Judge the served arm and its controls.

    Args:
        summary: All scores on the test set.
        served: The operating point.
    """
    found = [
        _above("the served arm is more likely right about the text than the source alone", summary,
               Arm("source"), served),
        _above("the target with its own cache is still better than the served arm", summary,
               served, Arm("target")),
        _above("the served arm is better than the mismatched control", summary,
               _control("mismatched", served), served),
        _above("the mismatched control is worse than the window", summary,
               _control("mismatched", served), _control("window", served)),
        _exact(summary, _control("exact", served)),
    ]  # fmt: skip
    return [each for each in found if each is not None] + _two_sides(summary.arm(served))


def _control(role: str, served: Arm) -> Arm:
    mapper = served.mapper if role == "mismatched" else ""
    return Arm(role, served.repair, served.prefix, mapper)  # type: ignore[arg-type]


def _above(what: str, summary: Summary, worse: Arm, better: Arm) -> Finding | None:
    """One arm's NLL is above another's with an interval that excludes 0."""
    if not len(summary.nll(worse)) or not len(summary.nll(better)):
        return None
    gain, _ = summary.gain(better, worse)
    return Finding(what, gain.low > 0, f"{gain} nats/token")


def _exact(summary: Summary, arm: Arm) -> Finding | None:
    result = summary.continuation(arm)
    if result is None:
        return None
    what = "exact KV through the mapped path closes 1.00 ± 0.01 of the gap"
    closed = result.gap_closed
    if closed is None:
        return Finding(what, None, "source and target differ too little")
    return Finding(what, abs(closed.value - 1) <= 0.01, str(closed))


def _two_sides(served: ArmResult) -> list[Finding]:
    """Whether likelihood and look-ups say the same of the served arm."""
    if served.continuation is None or served.lookups is None:
        return []
    likelihood = served.continuation.gap_closed or served.continuation.context_used
    memory = served.lookups.floor_normalised
    if likelihood is None or memory is None:
        return []
    return [
        Finding(
            _sentence(likelihood, memory),
            (likelihood.value >= WELL) == (memory.value >= WELL),
            f"likelihood {likelihood}, look-ups {memory}",
        )
    ]


def disagreement(likelihood: Estimate | None, memory: Estimate | None) -> str | None:
    """What likelihood and look-ups disagree on; None where they agree or one is not known.

    Args:
        likelihood: Gap closed, or context used where the gap is too small.
        memory: Look-ups right, chance taken off, over the target's.
    """
    if likelihood is None or memory is None:
        return None
    if likelihood.value >= WELL > memory.value:
        return "does well on likelihood and fails the look-ups"
    if memory.value >= WELL > likelihood.value:
        return "does well on the look-ups and fails on likelihood"
    return None


def _sentence(likelihood: Estimate, memory: Estimate) -> str:
    said = disagreement(likelihood, memory)
    if said is not None:
        return f"the served arm {said}"
    if memory.value >= WELL:
        return "the served arm does well on likelihood and on the look-ups alike"
    return "the served arm fails on likelihood and on the look-ups alike"
