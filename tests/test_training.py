"""Training keeps its best, goes on where it was interrupted, and leaves nothing behind."""

import csv
import gc
import math
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import FAMILIES, QUICK, Outcome, Workshop, read
from safetensors.torch import load_file
from torch import Tensor

from kvmap import load_mapper, training
from kvmap.errors import KVMapError
from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.mappers.mlp import MLP
from kvmap.pair import ModelPair, Side

DIAGNOSTICS = (
    "val/r2_keys",
    "val/r2_values",
    "val/attention_cosine",
    "val/key_error_concentration",
    "val/value_error_concentration",
)
MLP_RUN = ["mapper=mlp", "mapper.hidden=4", "mapper.epochs=4", "mapper.batch_size=32"]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def elsewhere() -> weakref.WeakSet[Mapper]:
    """Mappers that other tests keep."""
    return weakref.WeakSet(mappers_alive())


def mappers_alive() -> list[Mapper]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Mapper)]


@pytest.fixture(scope="module")
def run(family: str, shop: Workshop, elsewhere: weakref.WeakSet[Mapper]) -> tuple[Outcome, Path]:
    """One run of each family with its default config, made small."""
    folder = shop.root / "runs" / family
    return shop.train(folder, f"mapper={family}", *QUICK.get(family, [])), folder


def test_every_family_trains_measures_and_exports(run: tuple[Outcome, Path]) -> None:
    done, folder = run
    assert done.status == 0, done.err
    assert done.last_line == f"export: {folder / 'export'}"
    metrics = read(folder / "metrics.json")
    assert set(metrics) == {*DIAGNOSTICS, "fit_seconds", "weights"}
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["fit_seconds"] > 0
    assert -1 <= metrics["val/attention_cosine"] <= 1
    assert (folder / "config.yaml").is_file()
    assert read(folder / "run.json")["overrides"]


def test_the_record_has_a_table_per_layer_and_figures(run: tuple[Outcome, Path]) -> None:
    _, folder = run
    with (folder / "layers.csv").open() as file:
        layers = list(csv.DictReader(file))
    assert [row["layer"] for row in layers] == ["0", "1", "2", "3"]
    metrics = read(folder / "metrics.json")
    for name in DIAGNOSTICS:
        mean = sum(float(row[name.removeprefix("val/")]) for row in layers) / 4
        assert mean == pytest.approx(metrics[name])
    pictures = {path.stem for path in folder.glob("*.png")}
    assert pictures == {"r2_heatmap_keys", "r2_heatmap_values", "r2_against_k", "layers"}
    predictability = read(folder / "predictability.json")
    assert torch.tensor(predictability["by_layer"]["keys"]).shape == (3, 4)


def test_every_family_saves_its_best_also_without_a_gradient_step(
    run: tuple[Outcome, Path], family: str
) -> None:
    _, folder = run
    checkpoint = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)
    exported = load_file(folder / "export" / "model.safetensors")
    assert checkpoint["state_dict"].keys() == exported.keys()
    for name, weight in exported.items():
        assert torch.equal(weight, checkpoint["state_dict"][name]), name
    metrics = read(folder / "metrics.json")
    cosine = checkpoint["diagnostics"]["attention_cosine"]
    assert sum(cosine) / 4 == pytest.approx(metrics["val/attention_cosine"])


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(item) for key, item in value.items())
    if type(value) is list:
        return all(plain(item) for item in value)
    return type(value) in (str, int, float, bool, type(None))


@pytest.mark.parametrize("name", ["best", "last"])
def test_checkpoints_load_without_unpickling_and_know_no_folder(
    run: tuple[Outcome, Path], shop: Workshop, name: str
) -> None:
    _, folder = run
    path = folder / "checkpoints" / f"{name}.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    assert plain(dict(checkpoint["hyper_parameters"]))
    assert checkpoint["hyper_parameters"]["source"] == [3, 2, 16]
    assert str(shop.root).encode() not in path.read_bytes()


def test_the_export_maps_as_the_checkpoint_does(
    run: tuple[Outcome, Path], random_pair: ModelPair
) -> None:
    _, folder = run
    loaded = load_mapper(folder, random_pair)
    checkpoint = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)
    best = type(loaded)(**checkpoint["hyper_parameters"])
    best.load_state_dict(checkpoint["state_dict"])
    draw = torch.Generator().manual_seed(1)
    source = KV(*(torch.randn(3, 1, 2, 7, 16, generator=draw) for _ in range(2)))
    with torch.no_grad():
        for found, expected in zip(loaded(source), best(source), strict=True):
            assert torch.equal(found, expected)


def test_a_run_leaves_no_mapper_in_memory(
    run: tuple[Outcome, Path], elsewhere: weakref.WeakSet[Mapper]
) -> None:
    assert [each for each in mappers_alive() if each not in elsewhere] == []


def interrupt(monkeypatch: pytest.MonkeyPatch, epoch: int, error: type[BaseException]) -> None:
    """Break off in the middle of an epoch."""
    whole = MLP.training_step

    def training_step(self: MLP, batch: Any, number: int) -> Tensor:
        if self.current_epoch == epoch and number == 1:
            raise error("broken off")
        return whole(self, batch, number)

    monkeypatch.setattr(MLP, "training_step", training_step)


@pytest.fixture(scope="module")
def straight(shop: Workshop) -> Path:
    """An MLP run that was not interrupted."""
    folder = shop.root / "straight"
    assert shop.train(folder, *MLP_RUN).status == 0
    return folder


def assert_same_end(folder: Path, straight: Path) -> None:
    for name in ("best", "last"):
        found, expected = (
            torch.load(each / "checkpoints" / f"{name}.ckpt", weights_only=True)
            for each in (folder, straight)
        )
        assert found["epoch"] == expected["epoch"]
        assert found["global_step"] == expected["global_step"]
        for key, weight in expected["state_dict"].items():
            torch.testing.assert_close(found["state_dict"][key], weight, msg=key)
    for key, value in read(straight / "metrics.json").items():
        if key != "fit_seconds":
            assert read(folder / "metrics.json")[key] == pytest.approx(value), key


@pytest.mark.parametrize("moved", [False, True], ids=["in its place", "after a move"])
def test_an_interrupted_run_ends_where_a_straight_one_does(
    shop: Workshop, straight: Path, tmp_path: Path, moved: bool
) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, 2, KeyboardInterrupt)
        done = shop.train(folder, *MLP_RUN)
    assert done.status == 130, done
    assert "interrupted" in done.err
    assert "Traceback" not in done.err
    assert not (folder / "metrics.json").exists()
    last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["epoch"] == 1, "no finished epoch is lost"
    if moved:
        folder = Path(shutil.move(folder, tmp_path / "elsewhere"))
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        whole = MLP.training_step
        patch.setattr(
            MLP,
            "training_step",
            lambda self, *batch: steps.append(self.current_epoch) or whole(self, *batch),
        )
        assert shop.train(folder, *MLP_RUN).status == 0
    assert set(steps) == {2, 3}, "finished epochs are not trained again"
    assert_same_end(folder, straight)


def test_a_run_that_stopped_between_its_last_epoch_and_its_export_goes_on(
    shop: Workshop, straight: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(straight, tmp_path / "run"))
    shutil.rmtree(folder / "export")
    (folder / "metrics.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MLP, "training_step", lambda *_: pytest.fail("trained again"))
        assert shop.train(folder, *MLP_RUN).status == 0
    assert_same_end(folder, straight)


def test_a_defect_keeps_its_traceback(shop: Workshop, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, 0, ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            shop.train(tmp_path / "run", *MLP_RUN)
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_the_best_epoch_is_exported_not_the_last(shop: Workshop, tmp_path: Path) -> None:
    done = shop.train(tmp_path / "run", *MLP_RUN, "mapper.lr=3", "callbacks=none")
    assert done.status == 0, done.err
    best, last = (
        torch.load(tmp_path / "run" / "checkpoints" / f"{name}.ckpt", weights_only=True)
        for name in ("best", "last")
    )
    weights = load_file(tmp_path / "run" / "export" / "model.safetensors")
    assert all(torch.equal(weights[name], best["state_dict"][name]) for name in weights)
    assert last["epoch"] == 3
    cosine = [sum(each["diagnostics"]["attention_cosine"]) for each in (best, last)]
    assert cosine[0] >= cosine[1]


def test_without_a_checkpoint_nothing_is_exported(tmp_path: Path) -> None:
    with pytest.raises(KVMapError, match="no checkpoint was kept"):
        training.load_best(MLP([1, 1, 2], [1, 1, 2]), tmp_path / "best.ckpt")
    with pytest.raises(KVMapError, match="no checkpoint was kept"):
        training.load_best(MLP([1, 1, 2], [1, 1, 2]), Path(""))


def test_a_further_run_on_a_collection_loads_no_model(
    shop: Workshop, straight: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Side, "load", lambda self: pytest.fail("a language model was loaded"))
        assert shop.train(tmp_path / "run", "mapper=ridge", "mapper.k=1").status == 0
