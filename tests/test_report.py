"""The report of an evaluation and of a sweep: what is shown, what is said, what is missing."""

import itertools
import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import wandb
from commands import Outcome, Workshop, call, one_sentence
from evaluating import export
from matplotlib.image import imread
from reporting import benchmark, candidate, evaluation

from kvmap.cli.report import main
from kvmap.evaluation.report.evaluation_page import evaluation_page
from kvmap.evaluation.report.html import html
from kvmap.evaluation.report.markdown import markdown, markdown_table
from kvmap.evaluation.report.pareto import Point, pareto
from kvmap.evaluation.report.section import Fact, Page, Section, Table
from kvmap.evaluation.report.sweep import Alone, compare
from kvmap.evaluation.report.sweep_page import front_section, sweep_page
from kvmap.evaluation.report.verdict import verdict
from kvmap.evaluation.report.write import write_page
from kvmap.evaluation.result import EvaluationResult
from kvmap.evaluation.statistics import Estimate
from kvmap.pair import ModelPair
from kvmap.tracking import Tracker


@pytest.fixture(scope="module")
def run(shop: Workshop) -> Path:
    """A run, evaluated with everything that a report can show."""
    folder = shop.root / "reported"
    assert shop.train(folder, "mapper=ridge").status == 0
    done = shop.evaluate(
        f"export={folder}",
        "sizes.replacement=2",
        "speed.prompts=2",
        "speed.lengths=[12]",
        "speed.new_tokens=4",
        "speed.map_lengths=[16]",
        "speed.map_repeats=2",
        "speed.transformers=false",
    )
    assert done.status == 0, done.err
    assert done.last_line == f"report: {folder / 'evaluation' / 'report.html'}"
    return folder


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """The folder of an evaluation that nobody measured."""
    folder = tmp_path / "made up"
    folder.mkdir()
    evaluation().write(folder)
    benchmark().write(folder)
    return folder


def report(*overrides: str) -> Outcome:
    return call(main, "logger=none", *overrides)


EVERY = {
    "panels", "arms", "findings", "repair", "families", "replacements", "positions", "handoff",
    "stages", "lengths", "blocks", "mapping", "r2_keys", "r2_values", "r2_against_k", "layers",
}  # fmt: skip


def test_a_page_shows_everything_that_was_measured(run: Path) -> None:
    folder = run / "evaluation"
    page = evaluation_page(folder)
    # One mapper is too few for a correlation, and random models are asked no look-ups.
    assert EVERY - {section.name for section in page.sections} <= {"panels"}
    for section in page.sections:
        assert section.figure is not None or section.table is not None
        assert len(section.caption) > 60, section.name
        if section.figure is not None:
            drawn = imread(folder / "figures" / f"{section.name}.png")
            assert drawn.std() > 0.02, f"{section.name} is blank"


def test_the_html_needs_nothing_else_and_has_every_caption(run: Path) -> None:
    page = evaluation_page(run / "evaluation")
    text = (run / "evaluation" / "report.html").read_text()
    assert not re.search(r"<script|https?://|<link", text)
    assert all(src.startswith("data:image/png") for src in re.findall(r'src="([^"]*)"', text))
    unescaped = text.replace("&#x27;", "'").replace("&quot;", '"').replace("&amp;", "&")
    for section in page.sections:
        assert section.caption in unescaped
        assert f'id="{section.name}"' in text


def test_json_and_markdown_say_the_same(run: Path) -> None:
    folder = run / "evaluation"
    page, plain = evaluation_page(folder), json.loads((folder / "report.json").read_text())
    text = (folder / "report.md").read_text()
    assert plain["summary"] == list(page.summary)
    for section, kept in zip(page.sections, plain["sections"], strict=True):
        assert kept["caption"] == section.caption
        if section.table is not None:
            assert kept["table"]["rows"] == [list(row) for row in section.table.rows]
            assert markdown_table(section.table) in text
        if section.figure is not None:
            assert (folder / kept["figure"]).is_file()
            assert f"({kept['figure']})" in text


def test_the_numbers_are_the_evaluations(run: Path) -> None:
    result = EvaluationResult.read(run / "evaluation")
    page = evaluation_page(run / "evaluation")
    [arms] = [each.table for each in page.sections if each.name == "arms"]
    assert arms is not None
    rows = {row[0]: row for row in arms.rows}
    for arm in result.arms:
        assert arm.continuation is not None
        assert rows[arm.name][3].startswith(f"{arm.continuation.nll.value:.3f} [")
    facts = {fact.name: fact.value for fact in page.facts}
    assert result.data.test in facts["test passages"]
    assert result.mapper.weights_sha256 in facts["weights"]


def test_json_holds_the_operating_points_numbers_unrounded(made_up: Path) -> None:
    write_page(replace(evaluation_page(made_up), sections=[]), made_up)
    numbers = json.loads((made_up / "report.json").read_text())["numbers"]
    served = evaluation().find("mapped")
    assert served is not None
    assert served.continuation is not None
    assert served.lookups is not None
    for name, estimate in (
        ("gap_closed", served.continuation.gap_closed),
        ("below_source", served.continuation.below_source),
        ("lookups_floor_normalised", served.lookups.floor_normalised),
        ("cold_ttft_times_at_512", benchmark().answers[-1].arms[2].ttft),
    ):
        assert estimate is not None
        kept = numbers[name]
        assert kept == {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    assert numbers["cold_ttft_ms_at_512"] == {"value": 40.0, "low": None, "high": None}


def test_names_are_escaped() -> None:
    table = Table(("a|b",), [("<script>alert(1)</script>",)])
    section = Section("x", "<b>&", '"quoted" <i>', table=table)
    page = Page("<title>", ["1 < 2"], [section], [Fact("<f>", "<v>")], ["<m>"])
    text = html(page)
    for tag in ("<script>alert", "<b>&", "<i>", "<f>", "<v>", "<m>", "<title><title>"):
        assert tag not in text
    assert "a\\|b" in markdown(page, "figures")


def test_what_is_not_there_is_said(run: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(run / "evaluation", tmp_path / "bare")
    (bare / "benchmark.json").unlink()
    result = EvaluationResult.read(bare)
    gone = replace(result.mapper, export=str(tmp_path / "gone"))
    replace(result, mapper=gone, replacements=[], handoffs=[]).write(bare)
    page = evaluation_page(bare)
    said = " ".join(page.missing)
    for word in ("about speed", "R² heatmaps", "where the error lies", "handoff"):
        assert word in said
    assert {"arms", "findings", "repair"} <= {section.name for section in page.sections}
    assert "Not shown" in html(page)


def test_a_run_is_shown_only_where_its_weights_are_those_that_were_evaluated(
    run: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    result = EvaluationResult.read(moved / "evaluation")
    lost = replace(result.mapper, export=str(tmp_path / "gone"))
    replace(result, mapper=lost).write(moved / "evaluation")
    assert "layers" in {each.name for each in evaluation_page(moved / "evaluation").sections}
    other = replace(result.mapper, weights_sha256="0" * 64)
    replace(result, mapper=other).write(moved / "evaluation")
    page = evaluation_page(moved / "evaluation")
    assert "layers" not in {each.name for each in page.sections}
    assert any("no run with the evaluated weights" in line for line in page.missing)


@pytest.mark.parametrize(
    ("below_source", "advice"),
    [(Estimate(0.1, 0.05, 0.2, 6), "Worth serving"),
     (Estimate(-0.1, -0.2, -0.05, 6), "Not worth serving"),
     (Estimate(0.0, -0.1, 0.1, 6), "Not better than the source alone so far")],
)  # fmt: skip
def test_the_verdict_follows_the_interval(below_source: Estimate, advice: str) -> None:
    result = evaluation()
    told = [
        replace(arm, continuation=replace(arm.continuation, below_source=below_source))
        if arm.arm.role == "mapped" and arm.continuation
        else arm
        for arm in result.arms
    ]
    said = verdict(replace(result, arms=told), None)
    assert said[-1].startswith(advice)
    assert "chosen on development, all figures on the test set" in said[0]


def test_a_mapper_no_better_than_a_mismatched_cache_is_not_to_be_served() -> None:
    result = evaluation()
    mapped = result.find("mapped")
    assert mapped is not None
    same = [
        replace(arm, continuation=mapped.continuation) if arm.arm.role == "mismatched" else arm
        for arm in result.arms
    ]
    assert verdict(replace(result, arms=same), None)[-1].startswith("Do not serve it")


def test_the_front_is_what_no_other_point_beats() -> None:
    draw = random.Random(0)
    for count, _ in itertools.product((1, 2, 7, 30), range(20)):
        points = [Point(draw.randint(0, 6), draw.randint(0, 6)) for _ in range(count)]
        assert pareto(points) == [not beaten(point, points) for point in points]


def beaten(point: Point, others: list[Point]) -> bool:
    return any(
        other.quality >= point.quality and other.speed >= point.speed and other != point
        for other in others
    )


def test_a_sweeps_front_has_what_neither_a_mapper_nor_a_model_alone_beats(tmp_path: Path) -> None:
    draw = random.Random(1)
    several = [
        candidate(n, draw.uniform(-3, 1), draw.random(), draw.uniform(0.8, 9)) for n in range(11)
    ]
    several.append(candidate(11, -0.5, 0.3, 9.5))  # the fastest, and beaten by the source alone
    folder = tmp_path / "evaluation"
    folder.mkdir()
    evaluation([*several, candidate(12, None, 0.5, 3.0)]).write(folder)
    benchmark().write(folder)
    [found] = compare(tmp_path)
    assert found.measure == "gap closed"
    assert found.source == Alone(0.0, 10.0)
    points = {
        each.export: Point(each.gap_closed.value, each.cold_ttft.value)
        for each in found.entries
        if each.gap_closed and each.cold_ttft
    }
    assert len(points) == 12
    rivals = [*points.values(), Point(1.0, 1.0), Point(0.0, 10.0)]
    for each in found.entries:
        known = each.export in points
        assert each.front == (known and not beaten(points[each.export], rivals)), each.export
    assert 0 < sum(each.front for each in found.entries) < 12
    section = front_section(found)
    assert section is not None
    assert section.figure is not None
    [axes] = section.figure.axes
    told = [text.get_text() for text in axes.texts]
    assert {"source alone", "target alone", "1"} <= set(told)
    page = sweep_page(tmp_path)
    [table] = [each.table for each in page.sections if each.name == "mappers"]
    assert table is not None
    assert [bool(row[0]) for row in table.rows] == [each.front for each in found.entries]
    assert any(line.startswith("Does well on the look-ups and fails") for line in page.summary)


def test_where_no_gap_is_wide_enough_the_front_is_of_context_used(tmp_path: Path) -> None:
    evaluation([candidate(n, None, 0.5, 1.0 + n) for n in range(3)]).write(tmp_path)
    [found] = compare(tmp_path)
    assert found.measure == "context used"
    assert found.source is None
    assert [each.front for each in found.entries].count(True) == 1
    assert any("source alone" in line for line in sweep_page(tmp_path).missing)


def test_the_command_compares_a_sweep_and_marks_its_front(made_up: Path) -> None:
    root = made_up.parent
    done = report(f"runs={root}")
    assert done.status == 0, done.err
    assert done.out.startswith(f"one evaluation: {made_up / 'report.html'}")
    assert done.last_line == f"report: {root / 'report' / 'report.html'}"
    plain = json.loads((root / "report" / "report.json").read_text())
    [table] = [each["table"] for each in plain["sections"] if each["name"] == "mappers"]
    fronts = [row[2] for row in table["rows"] if row[0]]
    assert fronts
    shown = [line for line in done.out.splitlines() if line.startswith("| ●")]
    assert [line.split(" | ")[2] for line in shown] == fronts
    assert (root / "report" / "figures" / "front.png").is_file()
    for each in evaluation().operating_point.candidates:
        assert each.cold_ttft is not None
        kept = plain["numbers"][f"{each.mapper.export}: cold_ttft_times"]
        times = each.cold_ttft.times
        assert kept == {"value": times.value, "low": times.low, "high": times.high}


def test_mappers_that_nobody_evaluated_are_listed_and_said(
    random_pair: ModelPair, tmp_path: Path
) -> None:
    export(random_pair, tmp_path / "alone" / "export")
    done = report(f"runs={tmp_path}")
    assert done.status == 0, done.err
    assert "1 mappers, 0 of them evaluated" in done.out
    plain = json.loads((tmp_path / "report" / "report.json").read_text())
    assert any("not evaluated; kvmap-evaluate" in line for line in plain["missing"])


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], "name what to report"),
        (["runs=a", "export=b"], "name what to report"),
        (["runs=nowhere"], "runs=nowhere is no folder"),
        (["export=nowhere"], "no folder nowhere and no evaluation in outputs/evaluation-nowhere"),
        (["evaluation={empty}"], "or name where it lies (evaluation=…)"),
        (["evaluation=[a,b]"], "there is no evaluation in [a,b]; measure first"),
        (["export="], "export= names nothing; give a folder, a file or a hub id"),
        (["runs={empty}"], "neither an export nor an evaluation in"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(tmp_path: Path, asked: list[str], says: str) -> None:
    assert says in one_sentence(report(*(each.format(empty=tmp_path) for each in asked)))


def test_a_folder_that_cannot_be_made_is_one_sentence(made_up: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = report(f"evaluation={made_up}", f"out_dir={tmp_path / 'taken'}")
    assert "figures cannot be made (Not a directory); choose another out_dir" in one_sentence(done)


def test_only_mappers_of_one_text_are_compared(tmp_path: Path) -> None:
    """Two sweeps, and one mapper of the first evaluated again by itself."""
    for first, text in ((0, "one"), (3, "two")):
        folder = tmp_path / text
        folder.mkdir()
        several = [candidate(first + n, 0.5 + first / 10, 0.9, 2.0 + n) for n in range(3)]
        result = evaluation(several[: 3 - first // 3])
        replace(result, data=replace(result.data, development=text)).write(folder)
    alone = tmp_path / "alone"
    alone.mkdir()
    single = evaluation()
    point = replace(single.operating_point, candidates=[])
    replace(single, operating_point=point).write(alone)
    one, two = compare(tmp_path)
    assert [len(one.entries), len(two.entries)] == [3, 2]
    assert (one.text, two.text) == (
        "random source to target on one",
        "random source to target on two",
    )
    assert [each.front for each in one.entries].count(True) == 1
    assert [each.front for each in two.entries].count(True) == 1
    page = sweep_page(tmp_path)
    assert [each.name for each in page.sections][:3] == ["front", "front_2", "mappers"]
    assert "measured on 2 texts or pairs" in page.summary[1]


def test_a_damaged_run_is_one_sentence(run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    result = EvaluationResult.read(broken / "evaluation")
    replace(result, mapper=replace(result.mapper, export=str(broken))).write(broken / "evaluation")
    (broken / "predictability.json").write_text("{}")
    assert "holds a damaged layers.csv or" in one_sentence(report(f"export={broken}"))


def test_a_damaged_evaluation_is_one_sentence(run: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(run / "evaluation", tmp_path / "broken")
    (broken / "evaluation.json").write_text("{")
    assert "evaluation.json" in one_sentence(report(f"evaluation={broken}"))


def test_wandb_gets_figures_tables_numbers_and_the_page(
    made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = evaluation_page(made_up)
    kept = [each for each in page.sections if each.name in ("repair", "arms")]
    page = replace(page, sections=kept)
    write_page(page, made_up)
    logged: dict[str, object] = {}
    summary: dict[str, object] = {}
    original = wandb.Run.log

    def log(self: wandb.Run, data: dict[str, object], *args: object, **more: object) -> None:
        logged.update(data)
        summary.update(dict(self.summary))
        original(self, data, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(wandb.Run, "log", log)
    Tracker(mode="offline").publish(page, made_up)
    assert isinstance(logged["repair"], wandb.Image)
    assert isinstance(logged["arms_table"], wandb.Table)
    assert isinstance(logged["report"], wandb.Html)
    served = evaluation().find("mapped")
    assert served is not None
    assert served.continuation is not None
    gap = served.continuation.gap_closed
    assert gap is not None
    assert (summary["gap_closed"], summary["gap_closed/low"]) == (gap.value, gap.low)
    assert "Worth serving" in str(summary["verdict"])
    assert list((made_up / "wandb").glob("offline-run-*"))
    assert wandb.run is None
