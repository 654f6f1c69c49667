"""An export is data: it maps as the fitted mapper did, runs nothing, and serves only its pair."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paired
import pytest
import torch
from commands import CONF, FAMILIES, QUICK, call, contents, one_sentence, read
from conftest import make_tokenizer, save_qwen3
from hydra.utils import get_class
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

import kvmap
from kvmap import export
from kvmap.errors import KVMapError
from kvmap.export import load_mapper, push_export, save_export
from kvmap.families import families
from kvmap.kv import KV, KVShape
from kvmap.mappers.base import Mapper
from kvmap.mappers.ridge import Ridge
from kvmap.moments import Calibration
from kvmap.pair import ModelPair, ModelSpec

SOURCE, TARGET = KVShape(3, 2, 16), KVShape(4, 2, 16)
METRICS = {"val/attention_cosine": 0.5, "val/r2_keys": math.nan, "fit_seconds": 1.0}


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    fit, selection = (paired.pair(seed, 2, 300, SOURCE, TARGET) for seed in (1, 2))
    return paired.calibration(fit, selection)


def fitted(family: str, calibration: Calibration) -> Mapper:
    """A family as its config has it, with its closed-form part fitted."""
    torch.manual_seed(0)
    config = OmegaConf.load(CONF / "mapper" / f"{family}.yaml")
    config = OmegaConf.merge({"mapper": config}, OmegaConf.from_dotlist(QUICK.get(family, [])))
    arguments: Any = OmegaConf.to_container(config.mapper)
    mapper = get_class(arguments.pop("_target_"))(list(SOURCE), list(TARGET), **arguments)
    mapper.calibrate(calibration)
    for parameter in mapper.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # as if gradient steps had been taken
    return mapper.eval()


def save(mapper: Mapper, folder: Path, pair: ModelPair) -> Path:
    save_export(
        mapper,
        folder,
        pair=pair.name,
        direction=pair.direction,
        source=pair.source.identity(),
        target=pair.target.identity(),
        collection="c0ffee",
        metrics=METRICS,
    )
    return folder


@pytest.fixture
def folder(tmp_path: Path, calibration: Calibration, random_pair: ModelPair) -> Path:
    """A ridge export of the random pair."""
    return save(fitted("ridge", calibration), tmp_path / "export", random_pair)


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = read(folder / "config.json")
    change(values)
    (folder / "config.json").write_text(json.dumps(values))


def source_kv() -> KV:
    draw = torch.Generator().manual_seed(7)
    return KV(*(torch.randn(3, 2, 2, 5, 16, generator=draw) for _ in range(2)))


def test_every_family_has_a_config_and_every_config_a_family() -> None:
    assert families() == FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_comes_back_with_equal_outputs(
    family: str, calibration: Calibration, random_pair: ModelPair, tmp_path: Path
) -> None:
    mapper = fitted(family, calibration)
    loaded = kvmap.load_mapper(save(mapper, tmp_path, random_pair), random_pair)
    assert type(loaded) is type(mapper)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    with torch.no_grad():
        for found, expected in zip(loaded(source_kv()), mapper(source_kv()), strict=True):
            assert found.shape == (4, 2, 2, 5, 16)
            assert found.isfinite().all()
            assert torch.equal(found, expected)


def test_an_export_is_three_files_and_describes_itself(folder: Path) -> None:
    assert sorted(contents(folder)) == ["README.md", "config.json", "model.safetensors"]
    text = (folder / "config.json").read_text()
    assert str(folder.parent) not in text, "no absolute path"
    config = json.loads(text)
    assert (config["family"], config["pair"], config["collection"]) == (
        "ridge",
        "random",
        "c0ffee",
    )
    assert config["metrics"] == {
        "val/attention_cosine": 0.5,
        "val/r2_keys": None,
        "fit_seconds": 1.0,
    }
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: kvmap\n")
    assert "| val/r2_keys | undefined |" in card
    assert config["weights_sha256"] in card


def test_the_loaded_mapper_knows_its_export(folder: Path) -> None:
    exported = load_mapper(folder).exported
    assert exported is not None
    assert exported.source.shape == SOURCE
    assert exported.metrics["val/r2_keys"] is None


def test_a_run_folder_names_its_export(folder: Path) -> None:
    assert load_mapper(folder.parent).family == "ridge"


@pytest.mark.parametrize(
    "family", ["os", "evil", "base", "reading", "../evil", "kvmap.mappers.ridge", "", None, ["x"]]
)
def test_a_family_that_is_not_ours_is_refused(folder: Path, family: Any) -> None:
    edit(folder, lambda config: config.update(family=family))
    with pytest.raises(KVMapError, match="unknown mapper family"):
        load_mapper(folder)


@pytest.mark.parametrize(
    "arguments",
    [
        {"_target_": "os.system", "command": "true"},
        {"source": "abc", "target": [4, 2, 16]},
        {"source": [3, 2], "target": [4, 2, 16]},
        {"source": [3, 2, 16], "target": [4, 2, 16], "unknown": 1},
        {"source": [3, 2, 16], "target": [4, 2, 16], "k": 99},
        ["a", "b"],
        None,
    ],
)
def test_arguments_that_a_family_does_not_take_are_refused(folder: Path, arguments: Any) -> None:
    edit(folder, lambda config: config.update(arguments=arguments))
    with pytest.raises(KVMapError):
        load_mapper(folder)


def test_code_that_comes_with_an_export_is_not_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w')\n"
    for name in ("__init__", "ridge", "evil", "mapper", "conftest", "sitecustomize"):
        (folder / f"{name}.py").write_text(trap)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert type(load_mapper(folder)) is Ridge
    edit(folder, lambda config: config.update(family="evil"))
    with pytest.raises(KVMapError, match="unknown mapper family"):
        load_mapper(folder)
    assert not (tmp_path / "sprung").exists()


def test_weights_with_another_digest_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(KVMapError, match=r"model\.safetensors is missing or not the file"):
        load_mapper(folder)
    path.unlink()
    with pytest.raises(KVMapError, match=r"model\.safetensors is missing or not the file"):
        load_mapper(folder)


@pytest.mark.parametrize("damage", ["shape", "missing", "extra", "text"])
def test_weights_of_another_mapper_are_refused(folder: Path, damage: str) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    if damage == "shape":
        weights["bias"] = weights["bias"][:, :1].contiguous()
    if damage == "missing":
        del weights["bias"]
    if damage == "extra":
        weights["more"] = torch.zeros(1)
    save_file(weights, path)
    if damage == "text":
        path.write_text("no tensors here")
    digest = export._sha256(path)
    edit(folder, lambda config: config.update(weights_sha256=digest))
    with pytest.raises(KVMapError, match="does not hold a ridge mapper of this shape"):
        load_mapper(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format=99), "has format 99"),
        (lambda c: c.pop("family"), "does not describe an export"),
        (lambda c: c.pop("weights_sha256"), "is damaged"),
        (lambda c: c.update(surprise=1), "is damaged"),
        (lambda c: c["source"].pop("shape"), "is damaged"),
        (lambda c: c.update(source="a model"), "is damaged"),
        (lambda c: c.update(provenance=None), "is damaged"),
    ],
)
def test_a_damaged_description_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    edit(folder, change)
    with pytest.raises(KVMapError, match=message):
        load_mapper(folder)


def test_a_description_that_is_no_json_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(KVMapError, match=r"is damaged: it is not an export's config\.json"):
        load_mapper(folder)


def test_a_folder_without_an_export_and_an_unknown_id_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(KVMapError, match="holds no export"):
        load_mapper(tmp_path)
    with pytest.raises(KVMapError, match="neither a folder here nor a hub repository"):
        load_mapper("nobody/nothing-of-this-name")


def test_another_shape_is_refused(folder: Path, random_pair: ModelPair) -> None:
    reverse = ModelPair(
        "reverse", random_pair.source.spec, random_pair.target.spec, "target_to_source"
    )
    with pytest.raises(KVMapError, match=r"source with KV shape \(3, 2, 16\).* has \(4, 2, 16\)"):
        load_mapper(folder, reverse)


def test_another_tokenizer_is_refused(folder: Path, random_pair: ModelPair, tmp_path: Path) -> None:
    other = save_qwen3(tmp_path, seed=1, layers=3, hidden=32)
    make_tokenizer(("entirely other words make other merges",)).save_pretrained(other)
    pair = ModelPair("x", ModelSpec(str(other), dtype="float32"), random_pair.target.spec)
    with pytest.raises(KVMapError, match="source with tokenizer"):
        load_mapper(folder, pair)


@pytest.mark.parametrize(
    ("seed", "hidden", "fact"), [(3, 48, "weights"), (2, 64, "config")], ids=["weights", "config"]
)
def test_another_model_of_the_same_shape_is_refused(
    folder: Path, random_pair: ModelPair, tmp_path: Path, seed: int, hidden: int, fact: str
) -> None:
    other = save_qwen3(tmp_path, seed=seed, layers=4, hidden=hidden)
    pair = ModelPair("x", random_pair.source.spec, ModelSpec(str(other), dtype="float32"))
    with pytest.raises(KVMapError, match=f"target with {fact}"):
        load_mapper(folder, pair)


def test_an_unfitted_mapper_is_not_exported(tmp_path: Path, random_pair: ModelPair) -> None:
    with pytest.raises(KVMapError, match="ridge: weight holds numbers that are not finite"):
        save(Ridge(SOURCE, TARGET), tmp_path / "export", random_pair)
    assert not (tmp_path / "export").exists()


def test_push_uploads_the_export_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "private notes.txt").write_text("not for others")
    seen: dict[str, Any] = {}

    class Hub:
        def create_repo(self, repo: str, **options: Any) -> None:
            seen.update(repo=repo, **options)

        def upload_folder(self, **options: Any) -> str:
            seen.update(options)
            return "https://hub/me/mine"

    monkeypatch.setattr(export, "HfApi", Hub)
    assert push_export(folder, "me/mine") == "https://hub/me/mine"
    assert (seen["repo"], seen["private"]) == ("me/mine", True)
    own = {"README.md", "config.json", "model.safetensors", "evidence.json", "guard.json"}
    assert set(seen["allow_patterns"]) == own


def test_push_of_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KVMapError, match="cannot be read as an export"):
        push_export(tmp_path, "me/mine")


@pytest.mark.parametrize("given", [[], ["repo=me/mine"], ["export=.", "repo=me/mine"]])
def test_the_push_command_says_what_it_needs(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvmap.cli.push import main

    monkeypatch.chdir(tmp_path)
    sentence = one_sentence(call(main, *given))
    assert "export" in sentence
    assert list(tmp_path.iterdir()) == []
