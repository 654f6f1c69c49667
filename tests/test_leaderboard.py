"""The table of a sweep names every finished run, best first."""

import json
from pathlib import Path

import pytest
from hydra.core.utils import JobReturn
from hydra.types import RunMode
from omegaconf import OmegaConf

from kvmap.errors import KVMapError
from kvmap.leaderboard import FILE, Leaderboard, finished, rows, table

COSINE = "val/attention_cosine"


def run(folder: Path, cosine: float | None, asked: list[str] | None = None) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"digest": "0", "overrides": asked or []}))
    metrics = {COSINE: cosine, "fit_seconds": 1.5, "weights": 1234.0}
    (folder / "metrics.json").write_text(json.dumps(metrics))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run(tmp_path / "0", 0.2, ["out_dir=x", "mapper=depth_nearest"])
    run(tmp_path / "1", 0.9, ["out_dir=x", "mapper=ridge"])
    run(tmp_path / "deep" / "er", None, ["out_dir=x", "mapper=undefined"])
    run(tmp_path / "3", 0.5, ["out_dir=x", "mapper=mlp"])
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "order"), [("max", [0.9, 0.5, 0.2, None]), ("min", [0.2, 0.5, 0.9, None])]
)
def test_best_first_and_the_undefined_last(
    root: Path, mode: str, order: list[float | None]
) -> None:
    assert [row.metrics[COSINE] for row in rows(root, COSINE, mode)] == order


@pytest.mark.parametrize(("mode", "name"), [("max", "1"), ("min", "0")])
def test_the_best_run_is_the_first(root: Path, mode: str, name: str) -> None:
    assert finished(root, COSINE, mode)[0].folder.name == name


def test_the_best_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KVMapError, match="no finished run"):
        finished(tmp_path, COSINE, "max")
    run(tmp_path / "0", None)
    with pytest.raises(KVMapError, match="no finished run"):
        finished(tmp_path, COSINE, "max")


def test_an_unknown_monitor_is_refused_with_the_known_ones(root: Path) -> None:
    with pytest.raises(KVMapError, match=r"monitor=nope .*use one of fit_seconds, val/attention"):
        rows(root, "nope", "max")


@pytest.mark.parametrize("name", ["run.json", "metrics.json"])
def test_a_damaged_file_of_a_run_is_named(root: Path, name: str) -> None:
    (root / "1" / name).write_text("[]")
    with pytest.raises(KVMapError, match=rf"{name} is damaged: it is not a run's"):
        rows(root, COSINE, "max")


def test_runs_without_an_owner_or_an_end_are_no_runs(root: Path) -> None:
    (root / "1" / "run.json").unlink()
    (root / "3" / "metrics.json").unlink()
    assert [row.folder.name for row in rows(root, COSINE, "max")] == ["0", "er"]


def test_a_folder_without_runs_has_an_empty_table(tmp_path: Path) -> None:
    assert rows(tmp_path, COSINE, "max") == []
    assert "asked for" in table([], tmp_path)


def test_the_table_tells_folders_relative_and_what_sets_runs_apart(root: Path) -> None:
    lines = table(rows(root, COSINE, "max"), root).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(line) for line in lines}) == 1, "columns are aligned"
    assert [row[:3] for row in cells[2:]] == [
        ["1", "1", "mapper=ridge"],
        ["2", "3", "mapper=mlp"],
        ["3", "0", "mapper=depth_nearest"],
        ["4", "deep/er", "mapper=undefined"],
    ]
    cosine = cells[0].index("cosine")
    assert [row[cosine] for row in cells[2:]] == ["0.9000", "0.5000", "0.2000", "-"]
    assert str(root) not in "".join(lines)


def test_each_job_of_a_sweep_updates_the_file_and_the_end_prints_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = Leaderboard(COSINE, "max")
    config = OmegaConf.create({"hydra": {"mode": RunMode.MULTIRUN, "sweep": {"dir": str(root)}}})
    board.on_job_end(config, JobReturn())
    text = (root / FILE).read_text()
    assert "mapper=ridge" in text
    assert capsys.readouterr().out == ""
    board.on_multirun_end(config)
    out = capsys.readouterr().out
    assert text in out
    assert f"best first by {COSINE}" in out


def test_a_single_run_writes_no_table(root: Path) -> None:
    config = OmegaConf.create({"hydra": {"mode": RunMode.RUN, "sweep": {"dir": str(root)}}})
    Leaderboard(COSINE, "max").on_job_end(config, JobReturn())
    assert not (root / FILE).exists()
