"""The speed part of an evaluation: candidates' first tokens, and the benchmark beside it."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from evaluating import SMALL, corpus, export, random_ridge, settings

from kvmap.benchmark import floors
from kvmap.benchmark.result import FILE, BenchmarkResult
from kvmap.benchmark.settings import BenchmarkSettings
from kvmap.evaluation.candidates import Export
from kvmap.evaluation.evaluate import Evaluation
from kvmap.evaluation.result import EvaluationResult
from kvmap.evaluation.settings import Search
from kvmap.evaluation.speed import Speed
from kvmap.pair import ModelPair, ModelSpec
from kvmap.runtime.engine import Engine
from kvmap.runtime.settings import Repair

BRIEF = BenchmarkSettings([12, 24, 500], 2, 3, [64], 2, transformers=False)
SIZES = replace(SMALL, replacement=0, conversations=0, greedy=0)


@pytest.fixture(autouse=True)
def _small_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(floors.LARGE, "cpu", (128, 2**16))


@pytest.fixture(scope="module")
def pair(source_folder: Path, target_folder: Path) -> ModelPair:
    sides = (ModelSpec(str(folder), dtype="float32") for folder in (source_folder, target_folder))
    return ModelPair("random", *sides)


@pytest.fixture(scope="module")
def root(pair: ModelPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two exports of one sweep."""
    root = tmp_path_factory.mktemp("timed")
    for number in (0, 1):
        export(pair, root / f"{number}/export", random_ridge(pair, number))
    return root


def evaluate(pair: ModelPair, root: Path, out: str, **changes: Any) -> EvaluationResult:
    exports = [Export.find(root / f"{number}/export") for number in changes.pop("exports", (0, 1))]
    made = {"sizes": SIZES, "search": Search([4, 6], [0]), "speed": BRIEF} | changes
    return Evaluation(pair, corpus(root), exports, settings(**made), root / out, shown=False).run()


@pytest.fixture(scope="module")
def result(pair: ModelPair, root: Path) -> EvaluationResult:
    return evaluate(pair, root, "evaluation")


def deterministic(result: EvaluationResult) -> dict[str, Any]:
    """All but timings, and how much of them was asked."""
    kept = asdict(result)
    for candidate in kept["operating_point"]["candidates"]:
        candidate.pop("cold_ttft")
    kept["settings"].pop("speed")
    return {name: each for name, each in kept.items() if name not in ("seconds", "provenance")}


def test_every_candidate_says_how_soon_its_first_token_comes(result: EvaluationResult) -> None:
    candidates = result.operating_point.candidates
    assert len(candidates) == 3
    for each in candidates:
        assert each.cold_ttft is not None
        assert 0 < each.cold_ttft.ms < 5000
        assert each.cold_ttft.times.documents == SIZES.development
        assert each.cold_ttft.times.low <= each.cold_ttft.times.value


def test_the_benchmark_is_of_the_operating_point_on_test_prompts(
    result: EvaluationResult, root: Path
) -> None:
    speed, point = BenchmarkResult.read(root / "evaluation"), result.operating_point
    assert speed.mapper == result.mapper
    assert (speed.repair, speed.prefix) == (point.repair, point.prefix)
    assert [(each.length, each.prompts) for each in speed.answers] == [(12, 2), (24, 2)]
    assert [each.length for each in speed.mapping] == [64]
    assert speed.notes == [
        "answers at 500 prompt tokens are left out: passages have 32 tokens, the models 4096 "
        "positions"
    ]


def test_what_was_timed_is_not_timed_again(
    pair: ModelPair, root: Path, result: EvaluationResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (root / "evaluation" / FILE).read_bytes()
    monkeypatch.setattr(Engine, "__init__", lambda *_: pytest.fail("an engine was made"))
    again = evaluate(pair, root, "evaluation")
    assert again.operating_point == result.operating_point
    assert (root / "evaluation" / FILE).read_bytes() == before


def test_timing_changes_no_other_number_and_can_be_left_out(
    pair: ModelPair, root: Path, result: EvaluationResult
) -> None:
    without = evaluate(pair, root, "untimed", speed=BenchmarkSettings(prompts=0))
    assert deterministic(without) == deterministic(result)
    assert all(each.cold_ttft is None for each in without.operating_point.candidates)
    assert not (root / "untimed" / FILE).exists()


def test_a_benchmark_of_something_else_or_a_damaged_one_is_measured_anew(
    pair: ModelPair, root: Path
) -> None:
    few = replace(BRIEF, lengths=[12], map_lengths=[])
    made, search = [], Search([4], [0])

    def measure(number: int, **changes: Any) -> None:
        asked = {"speed": few, "search": search} | changes
        evaluate(pair, root, "one", exports=(number,), **asked)
        made.append((root / "one" / FILE).read_bytes())

    measure(0)
    measure(0)
    assert made[1] == made[0]
    measure(1)
    measure(1, speed=replace(few, new_tokens=4))
    measure(1, speed=replace(few, new_tokens=4), search=Search([6], [0]))
    measure(
        1,
        speed=replace(few, new_tokens=4),
        search=Search([6], [0]),
        sizes=replace(SIZES, passages=7),
    )
    assert len(set(made)) == 4, "more passages leave the first prompts as they are"
    (root / "one" / FILE).write_text("{")
    measure(1, speed=replace(few, new_tokens=4), search=Search([6], [0]))
    assert made[-1] not in made[:-1]
    assert BenchmarkResult.read(root / "one").repair == 6


def test_candidates_are_timed_through_their_own_mapper_at_their_own_repair(
    pair: ModelPair, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[str, Repair | None]] = []
    usual = Engine.use

    def use(engine: Engine, mapper: Any, repair: Repair | None = None) -> None:
        if mapper is not None:
            used.append((mapper.exported.weights_sha256, repair))
        usual(engine, mapper, repair)

    monkeypatch.setattr(Engine, "use", use)
    monkeypatch.setattr(Speed, "benchmark", lambda *_: None)
    point = evaluate(pair, root, "candidates").operating_point
    assert used == [
        (each.mapper.weights_sha256, Repair(each.repair, each.prefix)) for each in point.candidates
    ]
