"""W&B mirrors a run: offline without a key, one run a job, a crash told as a crash."""

import getpass
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import wandb
from commands import Workshop, read
from omegaconf import OmegaConf

from kvmap.errors import KVMapError
from kvmap.run import RunFolder
from kvmap.tracking import Tracker, Untracked, resolve_mode


@pytest.fixture
def finish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mock]:
    """Watches how runs end; none is left open."""
    watched = Mock(wraps=wandb.finish)
    monkeypatch.setattr(wandb, "finish", watched)
    yield watched
    assert wandb.run is None


@pytest.fixture
def keyless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without a key or a wish, on which asking for one fails the test."""
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for prompt in ("builtins.input", "getpass.getpass"):
        monkeypatch.setattr(prompt, lambda *_: pytest.fail("a prompt"))
    assert getpass.getpass is not None
    return monkeypatch


def test_auto_is_offline_without_a_key(keyless: pytest.MonkeyPatch) -> None:
    assert resolve_mode("auto") == "offline"
    assert Tracker().mode == "offline"


def test_auto_is_online_with_a_key(keyless: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine elsewhere login a password b\n")
    netrc.chmod(0o600)
    assert resolve_mode("auto") == "offline"
    netrc.write_text("machine api.wandb.ai login user password secret\n")
    assert resolve_mode("auto") == "online"
    netrc.unlink()
    keyless.setenv("WANDB_API_KEY", "secret")
    assert resolve_mode("auto") == "online"


def test_what_is_asked_for_wins(keyless: pytest.MonkeyPatch) -> None:
    keyless.setenv("WANDB_API_KEY", "secret")
    keyless.setenv("WANDB_MODE", "disabled")
    assert resolve_mode("auto") == "disabled"
    assert resolve_mode("offline") == "offline"
    assert resolve_mode("online") == "online"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(KVMapError, match=r"logger\.mode=loud is unknown"):
        Tracker(mode="loud")  # type: ignore[arg-type]


def test_a_crash_ends_the_run_as_failed_and_is_raised_again(
    tmp_path: Path, keyless: pytest.MonkeyPatch, finish: Mock
) -> None:
    config = OmegaConf.create({"seed": 0})
    with (
        pytest.raises(ZeroDivisionError),
        RunFolder(tmp_path / "run", config, []) as run,
        Tracker().track(run, "ridge"),
    ):
        raise ZeroDivisionError
    assert [call.kwargs for call in finish.call_args_list] == [{"exit_code": 1}]


def test_an_interruption_ends_the_run_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finish: Mock
) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        RunFolder(tmp_path / "run", OmegaConf.create({"seed": 0}), []) as run,
        Tracker(mode="offline").track(run, "ridge"),
    ):
        raise KeyboardInterrupt
    assert [call.kwargs for call in finish.call_args_list] == [{"exit_code": 1}]


def test_untracked_is_nothing(tmp_path: Path) -> None:
    with RunFolder(tmp_path, OmegaConf.create({"seed": 0}), []) as run:
        with Untracked().track(run, "ridge") as logger:
            assert logger is False
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            ".lock",
            "config.yaml",
            "run.json",
        ]


def test_three_jobs_of_a_process_make_three_runs_each_in_its_folder(
    source_folder: Path, target_folder: Path, tmp_path: Path, finish: Mock
) -> None:
    shop = Workshop(tmp_path / "shop", source_folder, target_folder)
    sweep = tmp_path / "sweep"
    done = shop.train(sweep, "--multirun", "mapper=ridge", "mapper.k=1,2,all", logger="wandb")
    assert done.status == 0, done.err
    runs = sorted(sweep.rglob("offline-run-*"))
    runs = [path for path in runs if path.is_dir()]
    assert [path.parents[1].name for path in runs] == ["0", "1", "2"]
    assert len({path.name.rpartition("-")[2] for path in runs}) == 3, "three ids"
    assert [call.kwargs for call in finish.call_args_list] == [{"exit_code": 0}] * 3
    for run in runs:
        folder = run.parents[1]
        assert read(folder / "metrics.json")["val/attention_cosine"] is not None
        names = {path.name.partition("_")[0] for path in (run / "files").rglob("*.png")}
        assert {"r2", "layers"} <= names, "the figures are mirrored"
        assert list((run / "files").rglob("layers*.table.json")), "and the table per layer"
