"""Figure of the handoff over turns."""

from kvmap.evaluation.report.section import Section, Table
from kvmap.evaluation.report.style import INK, SOURCE, TARGET, bars_of, figure, plain
from kvmap.evaluation.report.words import interval
from kvmap.evaluation.result import EvaluationResult


def handoff_section(result: EvaluationResult) -> Section | None:
    """Drift per turn, by speaker and by what is mapped."""
    if not result.handoffs:
        return None
    drawn = figure(10, 3.8)
    panels = drawn.subplots(1, len(result.handoffs), sharey=True, squeeze=False)[0]
    rows = []
    for axes, handoff in zip(panels, result.handoffs, strict=True):
        plain(axes)
        axes.axhline(0, color=INK, linewidth=1)
        for speaker, colour in (("target", TARGET), ("source", SOURCE)):
            turns = [each for each in handoff.turns if each.speaker == speaker and each.received]
            if not turns:
                continue
            drifts = [each.drift for each in turns]
            places, heights = [each.turn for each in turns], [each.value for each in drifts]
            axes.errorbar(
                places,
                heights,
                bars_of(drifts),
                color=colour,
                marker="o" if speaker == "target" else "s",
                capsize=3,
                label=f"{speaker} speaks",
            )
        axes.set_title(f"{handoff.mode} mapped at each turn", fontsize=10)
        axes.set_xlabel("turn")
        axes.set_xticks([each.turn for each in handoff.turns if each.received])
        axes.legend(frameon=False, fontsize=9)
        rows += [
            (handoff.mode, str(each.turn), each.speaker, str(each.received),
             interval(each.mapped_nll, 3), interval(each.native_nll, 3), interval(each.drift, 3))
            for each in handoff.turns if each.received
        ]  # fmt: skip
    panels[0].set_ylabel("drift, nats/token")
    first = result.handoffs[0]
    both = (
        "each takes over the other's cache, through its mapper"
        if first.reverse
        else "the source reads all itself, the target takes over its cache through the mapper"
    )
    header = ("mapped", "turn", "speaker", "received tokens", "NLL", "its own NLL", "drift")
    return Section(
        "handoff",
        "Handoff over turns: drift",
        f"Source and target take turns in {first.conversations} conversations "
        f"({result.operating_point.reported_on} set) of {first.turn_tokens} tokens a turn; {both} "
        f"and a repair of {first.repair} tokens. Drift is how many nats per "
        "token worse a speaker is than if it had read everything itself; 0 is perfect, bars are "
        "95% intervals. Left only new tokens are mapped at each turn, right everything is mapped "
        "anew. Points near 0 that do not climb mean that errors do not build up; "
        f"{_growth(result)}.",
        drawn,
        Table(header, rows),
    )


def _growth(result: EvaluationResult) -> str:
    told = [
        f"{interval(each.target_slope, 4)} where {each.mode} {_verb(each.mode)} mapped"
        for each in result.handoffs
    ]
    return f"the target's drift changes a turn by {' and by '.join(told)}"


def _verb(mode: str) -> str:
    return "are" if mode.endswith("tokens") else "is"
