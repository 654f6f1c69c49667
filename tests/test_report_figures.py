"""Every figure of a report, from results made up for it: what is drawn is what is in them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from reporting import about, answers, benchmark, candidate, continuation, evaluation, facts, point

from kvmap.evaluation.findings import disagreement
from kvmap.evaluation.report.arms_table import questions_section
from kvmap.evaluation.report.correlations import LEAST, correlations_section
from kvmap.evaluation.report.evaluation_page import QUALITY, SPEED, evaluation_page
from kvmap.evaluation.report.families import candidates_section, families_section
from kvmap.evaluation.report.handoff import handoff_section
from kvmap.evaluation.report.html import png
from kvmap.evaluation.report.quality import (
    SMOOTH,
    position_section,
    repair_section,
    replacement_section,
    smoothed,
)
from kvmap.evaluation.report.section import Section
from kvmap.evaluation.report.speed import (
    blocks_section,
    mapping_section,
    panels_section,
    stages_section,
)
from kvmap.evaluation.report.style import (
    CHOSEN,
    CONTROL,
    EDGE,
    MAPPED,
    SOURCE,
    TARGET,
    family_colour,
    family_marker,
)
from kvmap.evaluation.report.training import TrainingRun, training_sections
from kvmap.evaluation.report.verdict import verdict
from kvmap.evaluation.report.words import mapper_names
from kvmap.families import families
from kvmap.jsonfile import write_json


def axes_of(section: Section | None) -> list[Axes]:
    """Panels of a section's figure, which can be drawn and whose caption explains it."""
    assert section is not None
    assert section.figure is not None
    assert png(section.figure).startswith(b"\x89PNG")
    assert len(section.caption) > 150
    return section.figure.axes


def words_in(axes: Axes) -> str:
    return " ".join(text.get_text() for text in axes.texts)


def test_the_three_panels_have_the_parties_in_their_colours() -> None:
    section = panels_section(evaluation(), benchmark())
    quality, first, rate = axes_of(section)
    for axes in (quality, first, rate):
        assert [to_hex(bar.get_facecolor()).upper() for bar in axes.patches] == [
            SOURCE, MAPPED, TARGET
        ]  # fmt: skip
        assert [label.get_text() for label in axes.get_xticklabels()] == [
            "source", "mapped", "target"
        ]  # fmt: skip
    assert [bar.get_height() for bar in quality.patches] == [8 / 20, 19 / 20, 1]
    assert [bar.get_height() for bar in first.patches] == [10, 40, 100]
    assert "2.5x [2.5, 2.5]" in words_in(first) or "2.5x [2.4, 2.5]" in words_in(first)
    assert section is not None
    assert "512 tokens" in section.caption
    assert "20 on the test set" in section.caption


def test_without_look_ups_the_panels_show_choices_and_without_both_nothing() -> None:
    result = evaluation()
    unasked = replace(result, arms=[replace(arm, lookups=None) for arm in result.arms])
    assert axes_of(panels_section(unasked, benchmark()))[0].get_ylabel().startswith("choices")
    silent = replace(unasked, arms=[replace(arm, choices=None) for arm in unasked.arms])
    assert panels_section(silent, benchmark()) is None


def test_repair_curve_stands_between_the_models_alone() -> None:
    left, right = axes_of(repair_section(evaluation()))
    assert list(np.asarray(left.lines[0].get_ydata())) == pytest.approx([0.8, 0.8, 0.8])
    for axes in (left, right):
        assert "source alone" in words_in(axes)
        assert "target alone" in words_in(axes)
        assert axes.get_xticklabels()[2].get_text() == "32\n32.0%"
    assert repair_section(replace(evaluation(), curve=[])) is None


def test_positions_are_smoothed_without_being_moved() -> None:
    axes_of(position_section(evaluation()))
    ramp = [float(place) for place in range(30)]
    half = SMOOTH // 2
    assert smoothed(ramp)[half:-half] == pytest.approx(ramp[half:-half])
    assert smoothed([3.0]) == [3.0]


def test_only_parts_that_surely_help_are_coloured() -> None:
    [axes] = axes_of(replacement_section(evaluation()))
    coloured = [to_hex(bar.get_facecolor()).upper() == CHOSEN for bar in axes.patches]
    assert coloured == [True, False, True, False]
    assert replacement_section(replace(evaluation(), replacements=[])) is None


def test_candidates_are_side_by_side_and_those_far_left_at_the_edge() -> None:
    several = [candidate(0, 0.8, 0.9, 2.0), candidate(1, -7.0, 0.9, 2.0),
               candidate(2, None, 0.3, None)]  # fmt: skip
    section = candidates_section(point(several).candidates, "development", 10)
    left, _ = axes_of(section)
    drawn = [
        float(np.asarray(line.get_xdata())[0]) for line in left.lines if line.get_marker() == "<"
    ]
    assert drawn == [EDGE]
    assert section.table is not None
    assert section.table.rows[0][0].endswith("◂ chosen")
    assert "does well on the look-ups and fails on likelihood" in section.table.rows[-1]
    assert axes_of(families_section(evaluation()))
    alone = replace(evaluation(), operating_point=replace(point(several), candidates=[]))
    assert axes_of(families_section(alone))[0].get_xlabel() == "gap closed"


def test_diagnostics_are_ranked_by_what_they_foretell() -> None:
    few = point([candidate(n, 0.1 * n, 0.5, 2.0) for n in range(LEAST - 1)])
    assert correlations_section(few) is None
    section = correlations_section(point([candidate(n, 0.1 * n, 0.5, 2.0) for n in range(LEAST)]))
    panels = axes_of(section)
    assert len(panels) == 5
    assert section is not None
    assert section.table is not None
    assert section.table.rows[0][0] == "value error concentration"
    assert panels[-1].get_title() == "rho = 0.80 [0.75, 0.85]"
    assert "value error concentration tells most." in section.caption


def test_handoff_has_a_panel_a_mode() -> None:
    panels = axes_of(handoff_section(evaluation()))
    assert [axes.get_title() for axes in panels] == [
        "new tokens mapped at each turn", "everything mapped at each turn"
    ]  # fmt: skip
    assert handoff_section(replace(evaluation(), handoffs=[])) is None


def test_stages_stack_up_to_the_answer_and_the_first_token_is_marked() -> None:
    axes = axes_of(stages_section(benchmark()))[0]
    heights = {round(bar.get_y() + bar.get_height(), 3) for bar in axes.patches}
    assert {20.0, 80.0, 200.0} <= heights
    firsts = [float(np.asarray(line.get_ydata())[0]) for line in axes.lines]
    assert firsts == [10.0, 40.0, 100.0] * 2
    ticks = [label.get_text().split()[0] for label in axes.get_xticklabels()]
    assert ticks == ["source", "mapped", "target"] * 2


def test_blocks_are_summed_over_lengths() -> None:
    section = blocks_section(benchmark())
    left, _ = axes_of(section)
    assert [bar.get_height() for bar in left.patches] == [4, 16]
    assert section is not None
    assert "over 20 rounds" in section.caption


def test_mapping_has_milliseconds_and_ratios() -> None:
    section = mapping_section(benchmark())
    spent, ratio = axes_of(section)
    assert len(spent.lines) == 4
    assert ratio.get_ylim()[0] == 0
    assert section is not None
    assert section.table is not None
    assert section.table.rows[-1][0] == "1,024 (random KV)"
    assert mapping_section(replace(benchmark(), mapping=[])) is None


def test_a_run_shows_heatmaps_k_and_layers() -> None:
    by_layer = [[0.5, 0.1], [0.2, 0.9]]
    diagnostics = {"r2_keys": [0.5, None], "attention_cosine": [0.9, 0.8]}
    run = TrainingRun(by_layer, by_layer, [1, 2], [0.5, 0.6], [0.4, 0.5], diagnostics)
    sections = training_sections(run)
    assert [each.name for each in sections] == ["r2_keys", "r2_values", "r2_against_k", "layers"]
    for each in sections:
        axes_of(each)
    assert sections[0].table is not None
    assert list(sections[0].table.rows) == [("0", "0", "0.500"), ("1", "1", "0.900")]


def test_what_is_not_defined_in_a_run_is_left_open(tmp_path: Path) -> None:
    write_json(
        tmp_path / "predictability.json",
        {
            "by_layer": {"keys": [[0.5, None]], "values": [[0.4, 0.3]]},
            "against_k": {"k": [1], "keys": [None], "values": [0.3]},
        },
    )
    (tmp_path / "layers.csv").write_text("layer,r2_keys,attention_cosine\n0,0.5,nan\n1,,0.9\n")
    run = TrainingRun.beside(tmp_path / "export")
    assert run is not None
    assert run.diagnostics == {"r2_keys": [0.5, None], "attention_cosine": [None, 0.9]}
    sections = training_sections(run)
    for each in sections:
        axes_of(each)
    assert sections[0].table is not None
    assert list(sections[0].table.rows) == [("0", "0", "0.500"), ("1", "-", "-")]


def test_questions_have_retention_and_both_tests() -> None:
    section = questions_section(evaluation())
    assert section is not None
    assert section.table is not None
    served = next(row for row in section.table.rows if row[1] == "mapped + repair 32")
    assert served[2:] == ("19 of 20", "0.95 [0.90, 1.00]", "0.95 [0.90, 1.00]",
                          "0.93 [0.88, 0.98]", "+0 -1, p = 0.500", "+19 -0, p < 0.001",
                          "10.0%")  # fmt: skip


def test_what_was_not_measured_is_named_with_its_reason(tmp_path: Path) -> None:
    result = evaluation([candidate(0, 0.8, 0.9, 2.0)])
    silent = [replace(arm, continuation=arm.continuation if arm.name.startswith("mapped") else None,
                      lookups=None, choices=None) for arm in result.arms]  # fmt: skip
    bare = replace(result, arms=silent, curve=[], replacements=[], handoffs=[])
    bare.write(tmp_path)
    replace(benchmark(), mapping=[], answers=[]).write(tmp_path)
    page = evaluation_page(tmp_path)
    names = {section.name for section in page.sections}
    for name, why in (QUALITY | SPEED).items():
        assert (name in names) != (why in page.missing), name
    assert sum(why in page.missing for why in (QUALITY | SPEED).values()) >= 8
    (tmp_path / "benchmark.json").unlink()
    assert any("there is no benchmark.json" in why for why in evaluation_page(tmp_path).missing)


def test_a_mapper_that_is_good_in_one_thing_only_is_named_as_such() -> None:
    good, bad = about(0.9), about(0.1)
    assert disagreement(good, bad) == "does well on likelihood and fails the look-ups"
    assert disagreement(bad, good) == "does well on the look-ups and fails on likelihood"
    assert disagreement(good, good) is None
    assert disagreement(None, good) is None
    result = evaluation()
    forgetful = [replace(arm, lookups=answers(5)) if arm.arm.role == "mapped" else arm
                 for arm in result.arms]  # fmt: skip
    said = verdict(replace(result, arms=forgetful), None)[-1]
    assert said.startswith("Serve it with care")
    assert "does well on likelihood and fails the look-ups" in said


def test_the_verdict_has_worth_price_reason_and_advice() -> None:
    said = verdict(evaluation(), benchmark())
    text = " ".join(said)
    assert "closes 0.80 [0.75, 0.85]" in text
    assert "19 of 20 look-ups (source 8 of 20, target 20 of 20)" in text
    assert "2.5x sooner" in text
    assert "from 256 prompt tokens on, and not surely at 128" in text
    assert "mostly in: layer 0 (0.300 [0.250, 0.350] nats/token), keys" in text
    assert "Not as it should be: it is so (2)." in text
    assert (
        said[-1]
        == "Worth serving: better than the source alone by 0.800 [0.750, 0.850] nats/token."
    )
    nothing = [replace(each, nll_gain=about(0.0)) for each in evaluation().replacements]
    unsure = " ".join(verdict(replace(evaluation(), replacements=nothing), None))
    assert "cannot be laid to single layers, keys or values on 10 passages" in unsure


def test_parts_that_hold_next_to_nothing_of_what_is_missing_are_not_named() -> None:
    result = evaluation()
    served = result.find("mapped")
    assert served is not None
    assert served.continuation is not None
    missing = served.continuation.above_target.value
    parts = [
        replace(result.replacements[0], part="layer 5", nll_gain=about(0.5 * missing, 0.001)),
        replace(result.replacements[0], part="layer 9", nll_gain=about(0.05 * missing, 0.001)),
    ]
    text = " ".join(verdict(replace(result, replacements=parts), None))
    assert "layer 5" in text
    assert "layer 9" not in text


def test_families_look_the_same_everywhere_and_unlike_the_parties() -> None:
    known = families()
    looks = {(family_colour(each), family_marker(each)) for each in known}
    assert len(looks) == len(known)
    colours = {family_colour(each) for each in known if each != "depth_nearest"}
    assert not colours & {SOURCE, MAPPED, TARGET, CHOSEN, CONTROL}
    assert family_colour("depth_nearest") == CONTROL


def test_names_tell_what_sets_mappers_apart() -> None:
    mappers = [facts("ridge", 0), facts("ridge", 1), facts("mlp", 2, hidden=4)]
    assert mapper_names(mappers) == ["ridge k=1", "ridge k=2", "mlp"]
    twice = [facts("ridge", 0, k=1), facts("ridge", 1, k=1)]
    assert mapper_names(twice) == ["ridge (sweep/0)", "ridge (sweep/1)"]
    assert continuation(1.2).gap_closed is not None
