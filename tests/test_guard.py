"""The guard's threshold, and the command that chooses it."""

from pathlib import Path

import pytest
import torch
from commands import Workshop, call, one_sentence
from engines import Noise, engine, prompts, same_engine

from kvmap.cli.guard import main
from kvmap.errors import KVMapError
from kvmap.export import GUARD, find_export
from kvmap.pair import ModelPair
from kvmap.runtime.guard import GuardCalibration, difference, read_threshold, shares_above
from kvmap.runtime.mismatch import guard_differences


def test_the_difference_is_the_targets_nll_less_the_sources() -> None:
    draw = torch.Generator().manual_seed(0)
    target, source = torch.randn(2, 5, 9, generator=draw)
    tokens = torch.tensor([3, 1, 4, 1, 5])
    by_hand = [
        float(source[i].log_softmax(0)[tokens[i + 1]] - target[i].log_softmax(0)[tokens[i + 1]])
        for i in range(4)
    ]
    assert difference(target, source, tokens) == pytest.approx(sum(by_hand) / 4, abs=1e-5)


def test_the_threshold_lies_in_the_middle_of_a_gap() -> None:
    chosen = GuardCalibration.choose([0.0, 0.1, 0.2], [1.2, 2.0, 3.0], 8)
    assert chosen.threshold == pytest.approx(0.7)
    assert (chosen.detected, chosen.false_fallbacks) == (1.0, 0.0)


def test_where_both_overlap_the_errors_are_least() -> None:
    draw = torch.Generator().manual_seed(0)
    good = torch.randn(400, generator=draw).tolist()
    bad = (torch.randn(400, generator=draw) + 2).tolist()
    chosen = GuardCalibration.choose(good, bad, 8)
    best = min(
        1 - detected + false
        for detected, false in (shares_above(t / 50, bad, good) for t in range(-100, 200))
    )
    assert 1 - chosen.detected + chosen.false_fallbacks <= best + 0.01


def test_what_guard_means(tmp_path: Path) -> None:
    assert read_threshold(False, None, 8) is None
    assert read_threshold("off", None, 8) is None
    assert read_threshold(0.25, None, 8) == 0.25
    assert read_threshold(0, None, 8) == 0.0
    GuardCalibration(0.4, 8, 1.0, 0.0, 10).save(tmp_path)
    assert read_threshold(True, tmp_path, 8) == read_threshold("on", tmp_path, 8) == 0.4
    for asked, folder, repair in (
        ("on", None, 8),
        ("on", tmp_path, 9),
        ("often", tmp_path, 8),
        (-1, tmp_path, 8),
    ):
        with pytest.raises(KVMapError):
            read_threshold(asked, folder, repair)


def test_a_damaged_calibration_is_said(tmp_path: Path) -> None:
    (tmp_path / GUARD).write_text('{"threshold": "x", "repair": 8}')
    with pytest.raises(KVMapError, match=r"guard\.json is damaged.*run kvmap-guard again"):
        read_threshold("on", tmp_path, 8)


def test_exact_caches_are_believed_and_the_engine_sees_the_same_difference(
    random_pair: ModelPair,
) -> None:
    ids = [each * 3 for each in prompts(2, 1)]
    ids = [ids[0] * 10, ids[1] * 10]
    exact = same_engine(random_pair, repair=6)
    good, _ = guard_differences(exact, ids)
    assert all(abs(each) < 1e-4 for each in good)
    noisy = engine(random_pair, Noise, repair=6, guard=100.0)
    torch.manual_seed(1)
    seen = noisy.generate(ids[0]).stats.guard_difference
    torch.manual_seed(1)
    assert guard_differences(noisy, ids)[0][0] == pytest.approx(seen, abs=1e-4)


def test_the_command_writes_a_threshold_that_serving_takes(
    source_folder: Path, target_folder: Path, tmp_path: Path
) -> None:
    shop = Workshop(tmp_path, source_folder, target_folder)
    assert shop.train(tmp_path / "run", "mapper=ridge").status == 0
    asked = [*shop.pair, f"export={tmp_path / 'run'}", "prompts=3", "length=40", "repair.tokens=4"]
    done = call(main, *asked)
    assert done.status == 0, done.err
    assert "development: " in done.out
    assert "test: " in done.out
    folder = find_export(tmp_path / "run")
    assert (folder / GUARD).is_file()
    assert read_threshold("on", folder, 4) is not None
    for wrong in ("prompts=1", "length=4"):
        assert "too few or too short" in one_sentence(call(main, *asked, wrong))
