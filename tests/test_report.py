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
from matplotlib.image import imread

from kvmap.cli.report import main
from kvmap.evaluation.evidence import read_evidence
from kvmap.evaluation.report.evaluation_page import evaluation_page
from kvmap.evaluation.report.html import html
from kvmap.evaluation.report.markdown import markdown, markdown_table
from kvmap.evaluation.report.pareto import Point, pareto
from kvmap.evaluation.report.section import Fact, Page, Section, Table
from kvmap.evaluation.report.verdict import verdict
from kvmap.evaluation.result import EvaluationResult
from kvmap.evaluation.statistics import Estimate


@pytest.fixture(scope="module")
def sweep(shop: Workshop) -> Path:
    """Two mappers, chosen from and measured with everything that a report can show."""
    root = shop.root / "reported"
    for family in ("depth_nearest", "ridge"):
        assert shop.train(root / family, f"mapper={family}").status == 0
    done = shop.evaluate(
        f"runs={root}",
        "sizes.replacement=2",
        "speed.prompts=2",
        "speed.lengths=[12,24]",
        "speed.new_tokens=6",
        "speed.map_lengths=[16,32]",
    )
    assert done.status == 0, done.err
    assert done.last_line == f"report: {root / 'evaluation' / 'report.html'}"
    return root


def report(*overrides: str) -> Outcome:
    return call(main, "logger=none", *overrides)


EVERY = {
    "panels", "arms", "findings", "repair", "families", "replacements", "positions", "handoff",
    "stages", "lengths", "blocks", "mapping", "r2_keys", "r2_values", "r2_against_k", "layers",
}  # fmt: skip


def test_a_page_shows_everything_that_was_measured(sweep: Path) -> None:
    folder = sweep / "evaluation"
    page = evaluation_page(folder)
    # Two mappers are too few for a correlation, and random models answer no look-ups.
    assert EVERY - {section.name for section in page.sections} <= {"panels"}
    for section in page.sections:
        assert section.figure is not None or section.table is not None
        assert len(section.caption) > 60, section.name
        if section.figure is not None:
            drawn = imread(folder / "figures" / f"{section.name}.png")
            assert drawn.std() > 0.02, f"{section.name} is blank"


def test_the_html_needs_nothing_else_and_has_every_caption(sweep: Path) -> None:
    page = evaluation_page(sweep / "evaluation")
    text = (sweep / "evaluation" / "report.html").read_text()
    assert not re.search(r"<script|https?://|<link", text)
    assert all(src.startswith("data:image/png") for src in re.findall(r'src="([^"]*)"', text))
    unescaped = text.replace("&#x27;", "'").replace("&quot;", '"').replace("&amp;", "&")
    for section in page.sections:
        assert section.caption in unescaped
        assert f'id="{section.name}"' in text


def test_json_and_markdown_say_the_same(sweep: Path) -> None:
    folder = sweep / "evaluation"
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


def test_the_numbers_are_the_evaluations(sweep: Path) -> None:
    result = EvaluationResult.read(sweep / "evaluation")
    page = evaluation_page(sweep / "evaluation")
    [arms] = [each.table for each in page.sections if each.name == "arms"]
    assert arms is not None
    rows = {row[0]: row for row in arms.rows}
    for arm in result.arms:
        assert arm.continuation is not None
        assert rows[arm.name][3].startswith(f"{arm.continuation.nll.value:.3f} [")
    facts = {fact.name: fact.value for fact in page.facts}
    assert result.data.test in facts["test passages"]
    assert result.mapper.weights_sha256 in facts["weights"]
    evidence = read_evidence(Path(result.mapper.export))
    assert evidence is not None


def test_names_are_escaped() -> None:
    table = Table(("a|b",), [("<script>alert(1)</script>",)])
    section = Section("x", "<b>&", '"quoted" <i>', table=table)
    page = Page("<title>", ["1 < 2"], [section], [Fact("<f>", "<v>")], ["<m>"])
    text = html(page)
    for tag in ("<script>alert", "<b>&", "<i>", "<f>", "<v>", "<m>", "<title><title>"):
        assert tag not in text
    assert "a\\|b" in markdown(page, "figures")


def test_what_is_not_there_is_said(sweep: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(sweep / "evaluation", tmp_path / "bare")
    (bare / "benchmark.json").unlink()
    result = EvaluationResult.read(bare)
    gone = replace(result.mapper, export=str(tmp_path / "gone"))
    replace(result, mapper=gone, replacements=[], handoffs=[]).write(bare)
    page = evaluation_page(bare)
    said = " ".join(page.missing)
    for word in ("speed", "R² heatmaps", "where the error lies", "handoff"):
        assert word in said
    assert {"arms", "findings", "repair"} <= {section.name for section in page.sections}
    assert "Not shown" in html(page)


@pytest.mark.parametrize(
    ("below_source", "advice"),
    [((0.1, 0.05, 0.2), "Worth serving"), ((-0.1, -0.2, -0.05), "Not worth serving"),
     ((0.0, -0.1, 0.1), "Not better than the source alone so far")],
)  # fmt: skip
def test_the_verdict_follows_the_interval(
    sweep: Path, below_source: tuple[float, float, float], advice: str
) -> None:
    result = EvaluationResult.read(sweep / "evaluation")

    def telling(arm: object) -> object:
        text = arm.continuation  # type: ignore[attr-defined]
        if arm.arm.role == "mismatched":  # type: ignore[attr-defined]
            far = Estimate(99.0, 98.0, 100.0, 6)
            return replace(arm, continuation=replace(text, nll=far))  # type: ignore[type-var]
        if arm.arm.role == "mapped":  # type: ignore[attr-defined]
            found = Estimate(*below_source, 6)
            return replace(arm, continuation=replace(text, below_source=found))  # type: ignore[type-var]
        return arm

    told = replace(result, arms=[telling(arm) for arm in result.arms])  # type: ignore[misc]
    assert verdict(told, None)[-1].startswith(advice)
    assert result.operating_point.chosen_on in verdict(told, None)[0]


def test_a_mapper_no_better_than_a_mismatched_cache_is_not_to_be_served(sweep: Path) -> None:
    result = EvaluationResult.read(sweep / "evaluation")
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
        for point, front in zip(points, pareto(points), strict=True):
            beaten = any(
                other.quality >= point.quality and other.speed >= point.speed and other != point
                for other in points
            )
            assert front == (not beaten)


def test_a_sweep_is_compared_and_its_front_marked(sweep: Path) -> None:
    done = report(f"runs={sweep}")
    assert done.status == 0, done.err
    assert done.last_line == f"report: {sweep / 'report' / 'report.html'}"
    plain = json.loads((sweep / "report" / "report.json").read_text())
    [table] = [each["table"] for each in plain["sections"] if each["name"] == "mappers"]
    assert {row[1].split()[0] for row in table["rows"]} == {"depth_nearest", "ridge"}
    assert "| front | mapper |" in done.out
    measured = EvaluationResult.read(sweep / "evaluation").operating_point.candidates
    assert all(each.cold_ttft is not None for each in measured)
    if all(each.gap_closed is not None for each in measured):
        assert any(row[0] for row in table["rows"])


def test_mappers_that_nobody_evaluated_are_listed_and_said(shop: Workshop, tmp_path: Path) -> None:
    assert shop.train(tmp_path / "alone", "mapper=depth_nearest").status == 0
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
        (["export=nowhere"], "evaluation"),
        (["runs={empty}"], "neither an export nor an evaluation in"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(tmp_path: Path, asked: list[str], says: str) -> None:
    assert says in one_sentence(report(*(each.format(empty=tmp_path) for each in asked)))


def test_a_damaged_evaluation_is_one_sentence(sweep: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(sweep / "evaluation", tmp_path / "broken")
    (broken / "evaluation.json").write_text("{")
    assert "evaluation.json" in one_sentence(report(f"evaluation={broken}"))


def test_wandb_gets_figures_tables_and_the_page(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(sweep / "evaluation", tmp_path / "evaluation")
    logged: dict[str, object] = {}
    original = wandb.Run.log

    def log(self: wandb.Run, data: dict[str, object], *args: object, **more: object) -> None:
        logged.update(data)
        original(self, data, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(wandb.Run, "log", log)
    done = call(main, f"evaluation={copy}", "logger.mode=offline")
    assert done.status == 0, done.err
    assert isinstance(logged["repair"], wandb.Image)
    assert isinstance(logged["arms_table"], wandb.Table)
    assert isinstance(logged["report"], wandb.Html)
    assert list((copy / "wandb").glob("offline-run-*"))
    assert wandb.run is None
