"""A whole evaluation on small models: what it leaves, that it resumes, and what it refuses."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from evaluating import SMALL, corpus, export, random_ridge, settings

from kvmap.corpora.embedded import Embedded
from kvmap.corpora.file import File
from kvmap.errors import KVMapError
from kvmap.evaluation.arms import Arm
from kvmap.evaluation.candidates import Export, exports_below
from kvmap.evaluation.evaluate import Evaluation
from kvmap.evaluation.evidence import Evidence, read_evidence, require_evidence
from kvmap.evaluation.gates import gates
from kvmap.evaluation.lineup import Lineup, passages_with
from kvmap.evaluation.measure import blocks
from kvmap.evaluation.models import Models
from kvmap.evaluation.passages import Passage, fingerprint, passages, with_choices
from kvmap.evaluation.result import EvaluationResult
from kvmap.evaluation.settings import Search, Settings, Sizes
from kvmap.evaluation.statistics import Estimate
from kvmap.evaluation.structure import structure
from kvmap.evaluation.table import table
from kvmap.pair import ModelPair, ModelSpec

READABLE = replace(
    SMALL,
    prompt=380,
    continuation=16,
    passages=12,
    lookups=20,
    other_lookups=8,
    lookup_distance=100,
)
"""Sizes for the embedded corpus, with prompts long enough to say something."""


def evaluation(pair: ModelPair, root: Path, exports: list[Path], **more: Any) -> Evaluation:
    return Evaluation(
        pair=pair,
        corpus=Embedded(READABLE.length) if pair.name == "same" else corpus(root),
        exports=[Export.find(folder) for folder in exports],
        settings=more.pop("settings", settings()),
        out_dir=root / more.pop("out", "evaluation"),
        shown=False,
        **more,
    )


@pytest.fixture(scope="module")
def pair(source_folder: Path, target_folder: Path) -> ModelPair:
    sides = (ModelSpec(str(folder), dtype="float32") for folder in (source_folder, target_folder))
    return ModelPair("random", *sides)


@pytest.fixture(scope="module")
def same(pair: ModelPair) -> ModelPair:
    """A model that can read as source and target; depth_nearest maps it without loss."""
    spec = ModelSpec("embedded:source", dtype="float32")
    return ModelPair("same", spec, spec)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluated")


@pytest.fixture(scope="module")
def result(same: ModelPair, root: Path) -> EvaluationResult:
    """Of a lossless mapper, chosen from a sweep in which the other export is worthless."""
    folders = [export(same, root / "0/export", random_ridge(same)), export(same, root / "1/export")]
    search = Search([4, 6], [0, 2])
    return evaluation(same, root, folders, settings=readable(search)).run()


def readable(search: Search) -> Settings:
    return settings(sizes=READABLE, search=search)


def numbers(result: EvaluationResult) -> dict[str, Any]:
    return {k: v for k, v in asdict(result).items() if k not in ("seconds", "provenance")}


def test_all_arms_are_there_source_and_target_first(result: EvaluationResult) -> None:
    roles = [each.arm.role for each in result.arms]
    assert roles[:2] == ["target", "source"]
    assert set(roles) == {"target", "source", "mapped", "exact", "window", "mismatched",
                          "depth_nearest"}  # fmt: skip
    assert len({each.name for each in result.arms}) == len(result.arms)
    for each in result.arms:
        assert each.continuation is not None
        assert each.continuation.passages == READABLE.passages
        assert len(each.continuation.nll_by_passage) == READABLE.passages
        assert len(each.continuation.kl_by_position.values) == READABLE.continuation


def test_the_curve_goes_from_no_repair_up_with_its_share(result: EvaluationResult) -> None:
    arms = {each.name: each for each in result.arms}
    points = [arms[name] for name in result.curve]
    assert [point.arm.repair for point in points] == [0, 4, 6]
    shares = [point.repaired_share for point in points]
    assert shares == sorted(shares)


def test_a_lossless_mapper_is_the_target_in_every_task(result: EvaluationResult) -> None:
    served, target = result.find("mapped"), result.find("target")
    assert served.continuation.nll.value == pytest.approx(target.continuation.nll.value, abs=1e-4)
    assert served.continuation.kl.value == pytest.approx(0, abs=1e-5)
    assert served.continuation.context_used.value == pytest.approx(1, abs=1e-3)
    assert served.continuation.gap_closed is None, "source and target are one model"
    assert served.choices.retention.value == 1
    assert served.lookups.hits == target.lookups.hits
    assert served.greedy.exact_match.value == 1
    assert served.choices.against_target.p == 1
    for handoff in result.handoffs:
        assert len(handoff.turns) == READABLE.turns - 1
        assert all(abs(turn.drift.value) < 1e-4 for turn in handoff.turns)
    assert [each.part for each in result.replacements][:3] == ["keys", "values", "layer 0"]
    assert all(abs(each.nll_gain.value) < 1e-4 for each in result.replacements)


def test_the_better_export_is_chosen_on_development_and_reported_on_test(
    same: ModelPair, result: EvaluationResult
) -> None:
    point = result.operating_point
    assert (point.chosen_on, point.reported_on) == ("development", "test")
    assert result.mapper.family == "depth_nearest"
    # Both exports at the first repair, then the better one at three others.
    assert len(point.candidates) == 2 + 3
    (chosen,) = (each for each in point.candidates if each.chosen)
    assert (chosen.repair, chosen.prefix) == (point.repair, point.prefix) == (4, 0)
    assert chosen.mapper == result.mapper
    assert result.data.development != result.data.test
    texts = {
        split: passages(
            Embedded(READABLE.length),
            same.target.tokenizer,
            split,
            READABLE.length,
            count,
            asked,
            100,
        )
        for split, count, asked in (("development", 4, 0), ("test", 12, 20))
    }
    assert result.data.development == fingerprint(texts["development"])
    shown = with_choices(texts["test"], READABLE.prompt, READABLE.choice_tokens, seed=0)
    assert result.data.test == fingerprint(shown)


def test_it_reads_back_as_it_was(result: EvaluationResult, root: Path) -> None:
    assert EvaluationResult.read(root / "evaluation") == result


def test_evidence_lies_in_the_chosen_export_only(result: EvaluationResult, root: Path) -> None:
    assert read_evidence(root / "0/export") is None
    evidence = read_evidence(root / "1/export")
    assert evidence is not None
    assert evidence.weights_sha256 == result.mapper.weights_sha256
    assert evidence.data == result.data
    assert evidence.served.nll == result.find("mapped").continuation.nll
    assert {"target", "source", "mismatched + repair 4", "window 4"} <= {
        arm.name for arm in evidence.arms
    }


def test_finished_units_are_not_measured_again(
    same: ModelPair, root: Path, result: EvaluationResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = root / "evaluation/units"
    before = {path: path.stat().st_mtime_ns for path in units.iterdir()}
    monkeypatch.setattr(Models, "of", lambda *_: pytest.fail("a model ran"))
    folders = [root / "0/export", root / "1/export"]
    search = Search([4, 6], [0, 2])
    again = evaluation(same, root, folders, settings=readable(search)).run()
    assert numbers(again) == numbers(result)
    assert {path: path.stat().st_mtime_ns for path in units.iterdir()} == before


def test_an_interrupted_evaluation_goes_on_and_two_give_equal_numbers(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvmap.evaluation.tasks.choices import Choices

    folder = export(pair, tmp_path / "run/export", random_ridge(pair))
    small = settings(sizes=replace(SMALL, replacement=0, conversations=0))
    whole = evaluation(pair, tmp_path, [folder], settings=small, out="whole").run()
    calls = []

    def interrupted(self: Choices, answering: Any, given: Any) -> Any:
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return usual(self, answering, given)

    usual = Choices.measure
    monkeypatch.setattr(Choices, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluation(pair, tmp_path, [folder], settings=small, out="parts").run()
    calls += [1] * 100
    done = len(list((tmp_path / "parts/units").iterdir()))
    assert done > 5
    parts = evaluation(pair, tmp_path, [folder], settings=small, out="parts").run()
    assert numbers(parts) == numbers(whole)


def test_a_damaged_unit_is_measured_again(pair: ModelPair, tmp_path: Path) -> None:
    folder = export(pair, tmp_path / "run/export")
    small = settings(sizes=replace(SMALL, replacement=0, conversations=0, greedy=0))
    first = evaluation(pair, tmp_path, [folder], settings=small).run()
    for path in list((tmp_path / "evaluation/units").iterdir())[::3]:
        path.write_text(path.read_text()[: path.stat().st_size // 2])
    assert numbers(evaluation(pair, tmp_path, [folder], settings=small).run()) == numbers(first)


def test_another_mapper_reads_no_units_of_the_first(pair: ModelPair, tmp_path: Path) -> None:
    small = settings(sizes=replace(SMALL, replacement=0, conversations=0, greedy=0))
    nll = []
    for seed in (0, 1):
        folder = export(pair, tmp_path / f"{seed}/export", random_ridge(pair, seed))
        result = evaluation(pair, tmp_path, [folder], settings=small).run()
        nll.append(result.find("mapped").continuation.nll.value)
    assert nll[0] != nll[1]


def test_other_text_reads_no_units_of_the_first(pair: ModelPair, tmp_path: Path) -> None:
    small = settings(sizes=replace(SMALL, replacement=0, conversations=0, greedy=0))
    folder = export(pair, tmp_path / "run/export")
    first = evaluation(pair, tmp_path, [folder], settings=small)
    again = evaluation(pair, tmp_path, [folder], settings=small)
    backwards = tmp_path / "backwards.txt"
    backwards.write_text(first.corpus.path.read_text()[::-1])
    again.corpus = File(str(backwards))
    one, other = (each.run().find("target").continuation.nll.value for each in (first, again))
    assert one != other


def test_context_is_held_against_the_window_of_the_arms_own_repair(
    result: EvaluationResult,
) -> None:
    arms = {each.name: each.continuation for each in result.arms}
    target = arms["target"].nll.value
    for name in result.curve:
        repair = next(each.arm.repair for each in result.arms if each.name == name)
        window = arms[f"window {max(repair, 1)}"].nll.value
        wanted = (window - arms[name].nll.value) / (window - target)
        assert arms[name].context_used.value == pytest.approx(wanted)
    windows = [each.continuation for each in result.arms if each.arm.role == "window"]
    assert len(windows) == 3
    assert all(each.context_used.value == 0 for each in windows)
    source, served = result.find("source").continuation, result.find("window").continuation
    wanted = (served.nll.value - source.nll.value) / (served.nll.value - target)
    assert source.context_used.value == pytest.approx(wanted)


def test_the_table_prints_source_and_target_beside_every_mapped_figure(
    result: EvaluationResult,
) -> None:
    lines = table(result).splitlines()
    assert lines[2].startswith("target ")
    assert lines[3].startswith("source ")
    assert any(line.startswith("mapped + repair 4 (depth_nearest)") for line in lines)
    assert any("chosen on development, all above on test" in line for line in lines)


def test_gates_hold_the_lower_end_of_the_interval(result: EvaluationResult) -> None:
    found = result.find("mapped").lookups.accuracy
    assert found.low < found.value
    below, between = found.low - 0.01, (found.low + found.value) / 2
    assert [gate.passed for gate in gates(result, {"lookups": below})] == [True]
    assert [gate.passed for gate in gates(result, {"lookups": between})] == [False]
    (undefined,) = gates(result, {"gap_closed": 0.1})
    assert not undefined.passed
    assert "not defined" in str(undefined)
    with pytest.raises(KVMapError, match=r"gates.luck is unknown; choose from .*gap_closed"):
        gates(result, {"luck": 1})


def test_an_export_may_be_served_only_with_evidence_for_it(same: ModelPair, root: Path) -> None:
    with pytest.raises(KVMapError, match="carries no evidence"):
        require_evidence(root / "0/export")
    folder = root / "1/export"
    evidence = require_evidence(folder)
    try:
        replace(evidence, weights_sha256="0" * 64).write(folder)
        with pytest.raises(KVMapError, match="speaks of weights 000000000000"):
            require_evidence(folder)
        replace(evidence, above_mismatched=Estimate(0.2, -0.01, 0.3, 9)).write(folder)
        with pytest.raises(KVMapError, match="not better with the right prompt's cache"):
            require_evidence(folder)
        (folder / "evidence.json").write_text('{"format": 7}')
        with pytest.raises(KVMapError, match="format 7"):
            require_evidence(folder)
        (folder / "evidence.json").write_text('{"format": 1, "arms": 3}')
        with pytest.raises(KVMapError, match="damaged"):
            require_evidence(folder)
    finally:
        evidence.write(folder)
    assert read_evidence(folder) == evidence


def test_a_mapper_that_ignores_its_source_gets_no_license(pair: ModelPair, tmp_path: Path) -> None:
    mapper = random_ridge(pair)
    mapper.weight.zero_()  # every prompt's cache is the same constant
    folder = export(pair, tmp_path / "run/export", mapper)
    small = settings(sizes=replace(SMALL, replacement=0, conversations=0, greedy=0))
    evaluation(pair, tmp_path, [folder], settings=small).run()
    with pytest.raises(KVMapError, match="not better with the right prompt's cache"):
        require_evidence(folder)


def test_what_cannot_end_well_is_refused_before_it_starts(
    pair: ModelPair, same: ModelPair, tmp_path: Path
) -> None:
    folder = export(pair, tmp_path / "run/export")
    with pytest.raises(KVMapError, match="fitted on another source"):
        evaluation(same, tmp_path, [folder], settings=readable(Search([4], [0])))
    long = settings(sizes=replace(SMALL, prompt=5000))
    with pytest.raises(KVMapError, match="exceed the 4096 positions"):
        evaluation(pair, tmp_path, [folder], settings=long)
    several = settings(sizes=replace(SMALL, development=0))
    with pytest.raises(KVMapError, match=r"sizes\.development"):
        evaluation(pair, tmp_path, [folder, folder], settings=several).run()
    with pytest.raises(KVMapError, match="no export in"):
        exports_below(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompt": 1}, "sizes.prompt=1 must be a whole number from 2"),
        ({"passages": 2}, "sizes.passages=2 must be a whole"),
        ({"greedy_tokens": 70}, "sizes.greedy_tokens=70 must be at most sizes.continuation=64"),
        ({"replacement": 300}, "sizes.replacement=300 must be at most sizes.passages=200"),
        ({"conversations": 1}, "sizes.conversations=1 gives no interval"),
        ({"lookups": -1}, "sizes.lookups=-1"),
        ({"block": 2.5}, "sizes.block=2.5"),
    ],
)
def test_sizes_without_meaning_are_refused(changes: dict[str, int], says: str) -> None:
    with pytest.raises(KVMapError, match=says):
        Sizes(**changes)


def test_lookups_that_the_repaired_tail_could_answer_are_refused() -> None:
    with pytest.raises(KVMapError, match=r"sizes.lookup_distance=60 must exceed .*64"):
        settings(curve=[64])


def test_blocks_hold_every_passage_once_and_never_one_alone() -> None:
    for count in range(2, 40):
        for size in (2, 3, 8):
            found = blocks(count, size)
            assert [at for start, stop in found for at in range(start, stop)] == list(range(count))
            assert all(stop - start >= 2 for start, stop in found)


def test_passages_with_enough_lookups() -> None:
    import torch

    found = [Passage(torch.zeros(1), ((),) * count) for count in (3, 0, 4, 5)]  # type: ignore[arg-type]
    assert [passages_with(found, least) for least in (0, 1, 3, 4, 7, 8, 99)] == [
        0, 1, 1, 3, 3, 4, 4]  # fmt: skip
    assert passages_with([Passage(torch.zeros(1))], 5) == 0


def test_the_lineup_has_no_arm_twice() -> None:
    for served in (Arm("mapped", 32, 0, "x"), Arm("mapped", 0, 0, "x"), Arm("mapped", 8, 4, "x")):
        lineup = Lineup.around(served, [0, 8, 32], nearest=True, layers=3)
        arms = [*lineup.main, *lineup.controls, *lineup.windows, *lineup.replaced]
        assert len(set(arms)) == len(arms)
        assert len({arm.name for arm in arms}) == len(arms)


def test_structure_tells_what_is_not_of_its_form() -> None:
    good = asdict(Estimate(1.0, 0.0, 2.0, 3))
    assert structure(Estimate, json.loads(json.dumps(good))) == Estimate(1.0, 0.0, 2.0, 3)
    for bad in ({"value": "x"} | good, good | {"more": 1}, {"value": 1.0}, [1.0], None):
        if bad == good:
            continue
        with pytest.raises(TypeError):
            structure(Estimate, bad)
    assert structure(Estimate | None, None) is None  # type: ignore[arg-type]


def test_evidence_is_found_for_every_operating_point(result: EvaluationResult) -> None:
    for repair, prefix in ((0, 0), (4, 0), (6, 0)):
        point = replace(result.operating_point, repair=repair, prefix=prefix)
        evidence = Evidence.of(replace(result, operating_point=point), Estimate(1, 1, 1, 2))
        assert evidence.served.name == Arm("mapped", repair, prefix).name


def test_exact_closes_the_whole_gap_on_the_embedded_pair(tmp_path: Path) -> None:
    pair = ModelPair(
        "tiny", *(ModelSpec(f"embedded:{side}", dtype="float32") for side in ("source", "target"))
    )
    sizes = Sizes(prompt=200, continuation=64, passages=6, choice_tokens=16, lookups=20,
                  other_lookups=10, lookup_distance=40, greedy=2, greedy_tokens=8, development=0,
                  replacement=0, conversations=0)  # fmt: skip
    run = Evaluation(
        pair=pair,
        corpus=Embedded(264),
        exports=[Export.find(export(pair, tmp_path / "run/export"))],
        settings=settings(sizes=sizes, search=Search([16], [0]), curve=[0, 16]),
        out_dir=tmp_path / "evaluation",
        shown=False,
    )
    result = run.run()
    exact, target, window = (result.find(role) for role in ("exact", "target", "window"))
    assert exact.continuation.nll.value == pytest.approx(target.continuation.nll.value, abs=1e-4)
    if exact.continuation.gap_closed is not None:
        assert exact.continuation.gap_closed.value == pytest.approx(1, abs=0.01)
    assert exact.lookups.hits == target.lookups.hits[: exact.lookups.items]
    assert target.lookups.items >= 20 > exact.lookups.items >= 10
    assert target.lookups.accuracy.value > window.lookups.accuracy.value
    assert len(target.lookups.distances) == target.lookups.items
