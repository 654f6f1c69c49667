"""All arms side by side, the two models alone on top."""

from kvmap.evaluation.arms import Role
from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.words import interval, right, split
from kvmap.evaluation.result import AnswersResult, EvaluationResult

MEANING: dict[Role, str] = {
    "target": "the large model, having read everything itself",
    "source": "the small model alone",
    "exact": "the large model's own cache sent through the mapped path: has to equal target",
    "mapped": "the large model on the mapped cache",
    "depth_nearest": "the small model's layers copied, nothing learned",
    "mismatched": "the mapped cache of another prompt: has to be useless",
    "window": "the large model sees the last tokens only",
}


def arms_section(result: EvaluationResult) -> Section:
    """Every arm in a row."""
    rows = []
    for arm in result.arms:
        text, greedy = arm.continuation, arm.greedy
        rows.append(
            (
                arm.name,
                MEANING[arm.arm.role],
                f"{arm.repaired_share:.0%}",
                interval(text.nll, 3) if text else "-",
                interval(text.gap_closed) if text else "-",
                interval(text.context_used) if text else "-",
                right(arm.lookups),
                right(arm.choices),
                interval(greedy.same_start) if greedy else "-",
            )
        )
    header = ("arm", "what it is", "reads itself", "NLL", "gap closed", "context used",
              "look-ups", "choices", "greedy")  # fmt: skip
    point = result.operating_point
    passages = next((arm.continuation.passages for arm in result.arms if arm.continuation), 0)
    return Section(
        "arms",
        "All arms on the same texts",
        f"Each row answers the same {passages} {point.reported_on} texts. NLL is in nats per token "
        "of the text's own continuation, lower is better. Gap closed puts the source at 0 and the "
        "target at 1; context used puts a window of the last tokens at 0 and the target at 1. "
        "Look-ups ask for one of four values that the text bound far before; choices ask which of "
        "four continuations belongs to the text; greedy is the share of generated tokens up to the "
        "first that is not the target's. “Reads itself” is the share of the prompt that the "
        "answering model computes. Brackets are 95% intervals over documents. A mapper that is "
        "worth serving is far above mismatched and window, and beyond the source.",
        table=Table(header, rows),
    )


def questions_section(result: EvaluationResult) -> Section | None:
    """Four-way questions in full: what is retained, and who answers what the other does not."""
    rows = []
    for task in ("lookups", "choices"):
        for arm in result.arms:
            found: AnswersResult | None = getattr(arm, task)
            if found is None:
                continue
            rows.append(
                (
                    {"lookups": "look-ups", "choices": "choices"}[task],
                    arm.name,
                    right(found),
                    interval(found.accuracy),
                    interval(found.retention),
                    interval(found.floor_normalised),
                    split(found.against_target) if arm.arm.role != "target" else "-",
                    split(found.against_source) if arm.arm.role != "source" else "-",
                    f"{found.repaired_share:.1%}",
                )
            )
    if not rows:
        return None
    header = ("questions", "arm", "right", "share right", "retention", "floor-normalised",
              "against target", "against source", "reads itself")  # fmt: skip
    return Section(
        "questions",
        "Four-way questions in full",
        f"Look-ups and choices on the {result.operating_point.reported_on} set, guessing gives "
        "0.25. Retention is the share right over the target's, which flatters; floor-normalised "
        "takes guessing off both: 0 is guessing, 1 as good as the target. “+a -b” are the "
        "questions that only this arm, and only the other, answers right, with McNemar's exact p: "
        "a small p with more + than - means truly better. Brackets are 95% intervals.",
        table=Table(header, rows),
    )


def findings_section(result: EvaluationResult) -> Section:
    """What should be seen, and whether it was."""
    marks = {True: "✓ yes", False: "✗ no", None: "? not defined"}
    rows = [(marks[each.holds], each.what, each.measured) for each in result.findings]
    return Section(
        "findings",
        "What should be seen, and whether it was",
        f"Checks on the {result.operating_point.reported_on} set. A “no” in a line about controls "
        "means that the evaluation itself is in doubt; a “no” in the last line means that "
        "likelihood and look-ups disagree: such a mapper sounds right and has forgotten, or the "
        "reverse.",
        table=Table(("seen", "what", "measured"), rows),
    )
