"""``kvmap-evaluate`` as a user meets it."""

from pathlib import Path

import pytest
from commands import Workshop, one_sentence, read

from kvmap.benchmark.result import BenchmarkResult
from kvmap.evaluation.evidence import read_evidence
from kvmap.evaluation.gates import PLACES
from kvmap.evaluation.result import EvaluationResult
from kvmap.evaluation.settings import Settings


@pytest.fixture(scope="module")
def runs(shop: Workshop) -> Path:
    """A sweep of two mappers, and a mapper in the other direction."""
    folder = shop.root / "runs"
    for family in ("depth_nearest", "ridge"):
        assert shop.train(folder / family, f"mapper={family}").status == 0
    back = shop.train(shop.root / "back", "mapper=ridge", "pair.direction=target_to_source")
    assert back.status == 0, back.err
    return folder


def test_one_export_leaves_its_result_beside_it_and_its_evidence_in_it(
    shop: Workshop, runs: Path
) -> None:
    done = shop.evaluate(f"export={runs / 'ridge'}")
    assert done.status == 0, done.err
    result = EvaluationResult.read(runs / "ridge/evaluation")
    assert result.operating_point.chosen_on == "nothing"
    evidence = read_evidence(runs / "ridge/export")
    assert evidence is not None
    assert evidence.weights_sha256 == read(runs / "ridge/export/config.json")["weights_sha256"]
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["target", "source", "mapped"]
    assert f"evidence in {runs / 'ridge/export/evidence.json'}" in done.out


def test_a_sweep_is_chosen_from_and_a_reverse_mapper_plays_both_ways(
    shop: Workshop, runs: Path
) -> None:
    done = shop.evaluate(f"runs={runs}", f"reverse_export={shop.root / 'back'}")
    assert done.status == 0, done.err
    result = EvaluationResult.read(runs / "evaluation")
    point = result.operating_point
    assert {each.mapper.family for each in point.candidates} == {"depth_nearest", "ridge"}
    assert "chosen on development, all above on test" in done.out
    assert [handoff.mode for handoff in result.handoffs] == ["new tokens", "everything"]
    assert all(turn.received for handoff in result.handoffs for turn in handoff.turns)


def test_speed_at_the_operating_point_is_said_and_left_beside_the_result(
    shop: Workshop, runs: Path
) -> None:
    done = shop.evaluate(
        f"export={runs / 'ridge'}", "speed.prompts=2", "speed.lengths=[16,24,4000]",
        "speed.new_tokens=4", "speed.map_lengths=[]", "speed.transformers=false",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "speed at 24 prompt tokens, mapped against native: first token" in done.out
    result = BenchmarkResult.read(runs / "ridge/evaluation")
    assert result.mapper.family == "ridge"
    assert (result.repair, result.new_tokens) == (4, 4)
    assert [each.length for each in result.answers] == [16, 24]
    assert result.notes[0].startswith("answers at 4000 prompt tokens are left out: passages have")
    assert "speed.prompts=2" in result.command


def test_gates_decide_the_exit_status(shop: Workshop, runs: Path) -> None:
    export = f"export={runs / 'ridge'}"
    assert shop.evaluate(export, "gates.same_top=0").status == 0
    failed = shop.evaluate(export, "gates.same_top=0", "gates.below_source=99")
    assert failed.status == 2
    assert "gate passed: same_top" in failed.out
    assert "gate FAILED: below_source" in failed.out


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], "name what to evaluate"),
        (["export=x", "runs=y"], "name what to evaluate"),
        (["export=nowhere/at/all"], "nowhere/at/all is neither"),
        (["runs=nowhere"], "no export in nowhere"),
        (["export={ridge}", "gates.luck=1"], "there is no setting gates.luck"),
        (["export={ridge}", "sizes.prompt=1"], "sizes.prompt=1 must be a whole number"),
        (["export={ridge}", "sizes.passages=5000"], "texts of 32 tokens, 5000 are wanted"),
        (["export={ridge}", "search.repairs=[]"], "search.repairs is empty"),
        (["export={ridge}", "curve=[-1]"], "curve=-1 must be"),
        (["export={ridge}", "curve=abc"], "curve=abc must be a list"),
        (["export={ridge}", "quick=maybe"], "quick=maybe must be true or false"),
        (["export={ridge}", "speed.prompts=2", "speed.lengths=[99]"], "[99] all exceed"),
        (["export={ridge}", "+gates.luck=1"], "gates.luck is unknown"),
        (["export={ridge}", "gates=5"], "gates=5 names no requirement"),
        (["export={ridge}", "gates.lookups=true"], "gates.lookups=True must be a number"),
        (["runs=5"], "no export in 5"),
        (["runs=[a,b]"], "no export in [a,b]"),
        (["export="], "export= names nothing; give a folder"),
        (["exprot=x"], "there is no setting exprot"),
        (["export={ridge}", "reverse_export={ridge}"], "fitted on another source"),
        (["export={ridge}", "pair.source.model={target}"], "fitted on another source"),
        (["export={ridge}", "seed=x"], "seed=x must be"),
        (["export={ridge}", "out_dir={ridge}/run.json/x"], "run.json/x cannot be made"),
        (["export={ridge}", "speed.new_tokens=1"], "new_tokens=1 must be"),
        (["export={ridge}", "sizes.turns=many"], "sizes.turns=many must be"),
        (["export={ridge}", "gates.lookups=high"], "gates.lookups=high"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(
    shop: Workshop, runs: Path, asked: list[str], says: str
) -> None:
    target = shop.pair[2].removeprefix("pair.target.model=")
    overrides = [each.format(ridge=runs / "ridge", target=target) for each in asked]
    assert says in one_sentence(shop.evaluate(*overrides))


def test_quick_measures_less_of_the_same(shop: Workshop) -> None:
    from hydra import compose, initialize_config_module
    from hydra.utils import instantiate

    with initialize_config_module("kvmap.conf", version_base="1.3"):
        config = compose("evaluate")
        assert set(config.gates) == set(PLACES)
        sizes, speed = instantiate(config.sizes), instantiate(config.speed, _convert_="all")
    quick = sizes.quick()
    assert quick.prompt == sizes.prompt
    assert quick.passages < sizes.passages
    assert quick.quick() == quick
    assert speed == Settings().speed
    brief = speed.quick()
    assert (brief.lengths, max(brief.map_lengths)) == ([128, 960], 1024)
    assert brief.prompts == speed.prompts  # fewer bound nothing
    assert brief.new_tokens < speed.new_tokens
    assert brief.quick() == brief
