"""An evaluation on the terminal."""

from kvmap.evaluation.result import AnswersResult, ArmResult, EvaluationResult
from kvmap.evaluation.statistics import Estimate

HEADER = ("arm", "repaired", "NLL", "gap closed", "context used", "look-ups", "choices", "greedy")


def table(result: EvaluationResult) -> str:
    """Every arm in one row, source and target first, then what else was found."""
    rows = [HEADER, *(_row(arm) for arm in result.arms)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    point = result.operating_point
    lines += ["", f"chosen on {point.chosen_on}, all above on {point.reported_on}: {point.why}"]
    marks = {True: "yes", False: "NO", None: "?"}
    lines += [f"{marks[f.holds]:<4}{f.what} ({f.measured})" for f in result.findings]
    best = sorted(result.replacements, key=lambda each: -each.nll_gain.value)[:5]
    if best:
        lines += ["", "exact parts in place of mapped ones, what helps most (nats/token saved):"]
        lines += [f"    {each.part:<10}{each.nll_gain}" for each in best]
    for handoff in result.handoffs:
        last = handoff.turns[-1]
        lines.append(
            f"handoff, {handoff.mode} mapped each turn: drift in turn {last.turn} ({last.speaker}) "
            f"{last.drift} nats/token, the target's grows by {handoff.target_slope} a turn"
        )
    lines += [
        f"{score.task} {score.metric}, {score.arm}: {score.value:.4f} "
        f"({score.samples} samples, {score.repaired_share:.0%} of their contexts repaired)"
        for score in result.harness
    ]
    return "\n".join(lines)


def _row(arm: ArmResult) -> tuple[str, ...]:
    text, greedy = arm.continuation, arm.greedy
    return (
        arm.name if not arm.family or arm.family == arm.arm.role else f"{arm.name} ({arm.family})",
        f"{arm.repaired_share:.0%}",
        f"{text.nll.value:.4f}" if text else "-",
        _cell(text.gap_closed if text else None),
        _cell(text.context_used if text else None),
        _answers(arm.lookups),
        _answers(arm.choices),
        f"{greedy.same_start.value:.2f}" if greedy else "-",
    )


def _cell(estimate: Estimate | None) -> str:
    return "-" if estimate is None else estimate.told(2)


def _answers(found: AnswersResult | None) -> str:
    return "-" if found is None else f"{sum(found.hits)}/{found.items}"
