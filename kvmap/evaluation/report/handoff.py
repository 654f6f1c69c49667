"""Figure of the handoff over turns."""

from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import SOURCE, TARGET, bars_of, figure, plain
from kvmap.evaluation.report.words import interval
from kvmap.evaluation.result import EvaluationResult


def handoff_section(result: EvaluationResult) -> Section | None:
    """Drift per turn, by speaker and by what is mapped."""
    if not result.handoffs:
        return None
    drawn = figure(10, 3.6)
    panels = drawn.subplots(1, len(result.handoffs), sharey=True, squeeze=False)[0]
    rows = []
    for axes, handoff in zip(panels, result.handoffs, strict=True):
        plain(axes)
        axes.axhline(0, color="#777777", linewidth=1)
        for speaker, colour in (("target", TARGET), ("source", SOURCE)):
            turns = [each for each in handoff.turns if each.speaker == speaker and each.received]
            if not turns:
                continue
            drifts = [each.drift for each in turns]
            places, heights = [each.turn for each in turns], [each.value for each in drifts]
            axes.errorbar(
                places, heights, bars_of(drifts), color=colour, marker="o", capsize=3, label=speaker
            )
        axes.set(title=f"{handoff.mode} mapped at each turn", xlabel="turn")
        axes.legend(frameon=False)
        rows += [
            (handoff.mode, str(each.turn), each.speaker, str(each.received),
             interval(each.mapped_nll, 3), interval(each.native_nll, 3), interval(each.drift, 3))
            for each in handoff.turns if each.received
        ]  # fmt: skip
    panels[0].set_ylabel("drift, nats/token")
    first = result.handoffs[0]
    both = (
        "both take over the other's cache"
        if first.reverse
        else "the target takes over the source's cache; the source reads all itself"
    )
    header = ("mapped", "turn", "speaker", "received tokens", "NLL", "its own NLL", "drift")
    return Section(
        "handoff",
        "Handoff over turns",
        f"Source and target take turns in {first.conversations} conversations of "
        f"{first.turn_tokens} tokens a turn; {both}, through the mapper and a repair of "
        f"{first.repair} tokens. Drift is how many nats per token worse a speaker is than if it "
        f"had read everything itself; bars are 95% intervals. Left only new tokens are mapped at "
        "each turn, right everything. Points near 0 that do not climb mean that errors do not "
        f"build up; the target's drift grows by {interval(first.target_slope, 4)} a turn.",
        drawn,
        Table(header, rows),
    )
