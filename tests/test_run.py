"""A run's folder has one owner, and nothing in it is lost to another."""

from pathlib import Path

import pytest
from commands import contents, read
from omegaconf import DictConfig, OmegaConf

from kvmap.errors import KVMapError
from kvmap.run import RunFolder


def config(seed: int = 0, out_dir: str = "somewhere") -> DictConfig:
    return OmegaConf.create({"seed": seed, "twice": "${seed}", "out_dir": out_dir})


def enter(folder: Path, seed: int = 0, out_dir: str = "somewhere") -> RunFolder:
    with RunFolder(folder, config(seed, out_dir), [f"seed={seed}"]) as run:
        (folder / "result").write_text("first")
    return run


def finish(folder: Path) -> None:
    (folder / "metrics.json").write_text('{"a": 1.0, "b": null}')
    (folder / "export").mkdir()
    (folder / "export" / "config.json").write_text("{}")


def test_the_record_stands_in_the_folder_before_anything_runs(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with RunFolder(folder, config(), ["seed=0"]) as run:
        assert OmegaConf.load(folder / "config.yaml").twice == 0
        owner = read(folder / "run.json")
        assert owner["digest"] == run.digest
        assert owner["overrides"] == ["seed=0"]
        assert owner["versions"]["torch"]


def test_the_same_run_enters_again(tmp_path: Path) -> None:
    enter(tmp_path)
    before = contents(tmp_path)
    with RunFolder(tmp_path, config(), []) as run:
        assert not run.finished
        assert run.last_checkpoint is None
    assert contents(tmp_path) == before


def test_another_run_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    enter(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(KVMapError, match=r"belongs to another run.*choose another out_dir"):
        enter(tmp_path, seed=1)
    assert contents(tmp_path) == before


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    before = contents(tmp_path)
    with pytest.raises(KVMapError, match=r"is not empty \(it has thesis\.tex\)"):
        enter(tmp_path)
    assert {name: contents(tmp_path)[name] for name in before} == before
    assert not (tmp_path / "run.json").exists()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path, config(), []),
        pytest.raises(KVMapError, match="another process is running"),
    ):
        enter(tmp_path)
    enter(tmp_path)


def test_a_refusal_lets_the_folder_go(tmp_path: Path) -> None:
    enter(tmp_path)
    for _ in range(2):
        with pytest.raises(KVMapError, match="belongs to another run"):
            enter(tmp_path, seed=1)
    enter(tmp_path)


def test_where_a_run_lies_is_no_part_of_what_it_is(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, config(0, "a"), ["out_dir=a"])
    second = RunFolder(tmp_path, config(0, "b"), ["out_dir=b"])
    assert first.digest == second.digest
    assert first.digest != RunFolder(tmp_path, config(1, "a"), []).digest


def test_a_run_that_failed_before_it_left_anything_gives_the_folder_back(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), RunFolder(tmp_path, config(0), []):
        raise RuntimeError
    enter(tmp_path, seed=1)


def test_a_run_that_failed_later_keeps_the_folder(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, config(0), [])
    run.__enter__()
    (tmp_path / "checkpoints").mkdir()
    run.__exit__(RuntimeError)
    with pytest.raises(KVMapError, match="belongs to another run"):
        enter(tmp_path, seed=1)


def test_a_run_is_finished_with_both_metrics_and_export(tmp_path: Path) -> None:
    run = enter(tmp_path)
    assert not run.finished
    finish(tmp_path)
    assert run.finished
    assert run.metrics == {"a": 1.0, "b": None}
    (tmp_path / "export" / "config.json").unlink()
    assert not run.finished


@pytest.mark.parametrize("text", ["{", "{}", "[]", "3", '{"overrides": []}'])
def test_a_damaged_owner_file_is_named(tmp_path: Path, text: str) -> None:
    enter(tmp_path)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(KVMapError, match=r"run\.json is damaged: it is not a run's owner file"):
        enter(tmp_path)
