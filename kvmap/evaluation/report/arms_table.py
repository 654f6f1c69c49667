"""All arms side by side, the two models alone on top."""

from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.words import interval, right
from kvmap.evaluation.result import EvaluationResult

MEANING = {
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
                f"{greedy.same_start.value:.2f}" if greedy else "-",
            )
        )
    header = ("arm", "what it is", "reads itself", "NLL", "gap closed", "context used",
              "look-ups", "choices", "greedy")  # fmt: skip
    point = result.operating_point
    return Section(
        "arms",
        "All arms on the same texts",
        f"Each row answers the same {point.reported_on} texts. NLL is in nats per token of the "
        "text's own continuation, lower is better. Gap closed puts the source at 0 and the target "
        "at 1; context used puts a window of the last tokens at 0 and the target at 1. Look-ups "
        "ask for one of four values that the text bound far before; choices ask which of four "
        "continuations belongs to the text; greedy is the share of generated tokens up to the "
        "first that is not the target's. “Reads itself” is the share of the prompt that the "
        "answering model computes. Brackets are 95% intervals over documents. A mapper that is "
        "worth serving is far above mismatched and window, and beyond the source.",
        table=Table(header, rows),
    )


def findings_section(result: EvaluationResult) -> Section:
    """What should be seen, and whether it was."""
    marks = {True: "yes", False: "no", None: "not defined"}
    rows = [(each.what, marks[each.holds], each.measured) for each in result.findings]
    return Section(
        "findings",
        "What should be seen, and whether it was",
        "Sanity checks on the test set. A “no” in a line about controls means that the evaluation "
        "itself is in doubt; a “no” in the last line means that likelihood and look-ups disagree: "
        "such a mapper sounds right and has forgotten, or the reverse.",
        table=Table(("what", "seen", "measured"), rows),
    )
