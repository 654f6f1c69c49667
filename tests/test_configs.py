"""Every config composes, and names only classes and arguments that exist."""

import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import CONF
from hydra import compose, initialize_config_module
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from kvmap.pair import ModelPair
from kvmap.refinement.settings import RefinementSettings
from kvmap.runtime.settings import Settings
from kvmap.server.settings import ServerSettings
from kvmap.tracking import Tracker, Untracked

GROUPS = ("pair", "data", "mapper", "trainer", "logger", "callbacks", "experiment")
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
SERVING = [
    (group, path.stem)
    for group in ("runtime", "schedule")
    for path in sorted((CONF / group).glob("*.yaml"))
]
SUPPLIED = {"source", "target", "pair", "max_epochs", "callbacks", "default_root_dir"}
"""Arguments that the training command adds itself."""


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    with initialize_config_module("kvmap.conf", version_base="1.3"):
        yield


def targets(config: Any) -> Iterator[DictConfig]:
    """Every node with a ``_target_``, at any depth."""
    if isinstance(config, DictConfig):
        if "_target_" in config:
            yield config
        config = list(config.values())
    if OmegaConf.is_list(config) or isinstance(config, list):
        for item in config:
            yield from targets(item)


def whole(config: DictConfig) -> DictConfig:
    OmegaConf.resolve(config)
    return config


@pytest.mark.parametrize(("group", "name"), CHOICES, ids=["/".join(c) for c in CHOICES])
def test_every_config_composes_and_its_targets_take_its_keys(group: str, name: str) -> None:
    found = list(targets(whole(compose("train", overrides=[f"{group}={name}", "out_dir=x"]))))
    assert found
    for node in found:
        target = get_object(node["_target_"])
        assert callable(target)
        parameters = inspect.signature(target).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            continue
        keys = set(node) - {"_target_"}
        assert keys <= {each.name for each in parameters}, node["_target_"]
        needed = {each.name for each in parameters if each.default is each.empty}
        assert needed <= keys | SUPPLIED, node["_target_"]


@pytest.mark.parametrize(("group", "name"), SERVING, ids=["/".join(c) for c in SERVING])
def test_every_way_of_serving_makes_settings(group: str, name: str) -> None:
    config = whole(compose("serve", overrides=[f"{group}={name}"]))
    assert isinstance(instantiate(config.runtime), Settings)
    assert {config.pair[side].device for side in ("source", "target")} <= {
        "cpu",
        "cuda:0",
        "cuda:1",
    }


def test_the_servers_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVMAP_API_KEY", raising=False)
    assert instantiate(compose("serve").server) == ServerSettings()
    monkeypatch.setenv("KVMAP_API_KEY", "123")
    assert instantiate(compose("serve").server) == ServerSettings(api_key="123")


@pytest.mark.parametrize("name", [path.stem for path in sorted(CONF.glob("*.yaml"))])
def test_every_command_composes(name: str) -> None:
    assert whole(compose(name, overrides=["out_dir=x"] if name == "train" else []))


@pytest.mark.parametrize("name", [name for group, name in CHOICES if group == "experiment"])
def test_every_job_that_an_experiment_sweeps_over_composes(name: str) -> None:
    override = f"experiment={name}"
    config = compose("train", overrides=[override], return_hydra_config=True)
    parameters = config.hydra.sweeper.get("params") or {}
    choices = [[f"{key}={v}" for v in str(values).split(",")] for key, values in parameters.items()]
    for job in itertools.product(*choices):
        composed = compose("train", overrides=[override, *job])
        for chosen in job:
            key, value = chosen.split("=")
            if key != "mapper":
                expected = OmegaConf.from_dotlist([f"value={value}"]).value
                assert OmegaConf.select(composed, key) == expected


@pytest.mark.parametrize("name", [name for group, name in CHOICES if group == "pair"])
def test_every_pair_has_two_sides_and_a_reverse(name: str) -> None:
    sides = ["pair.source.model=a", "pair.target.model=b"] if name == "custom" else []
    forth, back = (
        instantiate(compose("train", overrides=[f"pair={name}", *sides, *more]).pair)
        for more in ([], ["pair.direction=target_to_source"])
    )
    assert isinstance(forth, ModelPair)
    assert forth.name == name
    assert forth.source.spec != forth.target.spec
    assert (back.source.spec, back.target.spec) == (forth.target.spec, forth.source.spec)


def test_loggers_trainers_and_callbacks_are_made() -> None:
    assert isinstance(instantiate(compose("train", overrides=["logger=none"]).logger), Untracked)
    config = compose("train")
    assert isinstance(instantiate(config.logger), Tracker)
    assert instantiate(config.trainer, accelerator="cpu", logger=False)
    assert len(instantiate(config.callbacks)) == 1
    assert compose("train", overrides=["callbacks=none"]).callbacks == {}


def test_a_refinement_is_by_default_what_its_settings_are() -> None:
    assert instantiate(compose("refine").refinement) == RefinementSettings()


def test_the_defaults_that_others_rely_on() -> None:
    config = compose("train")
    assert config.pair.name == "tiny"
    assert config.monitor == "val/attention_cosine"
    assert config.monitor_mode == "max"
    assert config.seed == 0


def test_no_config_holds_an_absolute_path_or_asks_for_the_job_number_itself() -> None:
    for path in CONF.rglob("*.yaml"):
        text = path.read_text()
        assert not any(value.startswith(("/", "~")) for value in scalars(path)), path
        # hydra:job.num does not exist in a single run; only the sweep's own settings may use it.
        allowed = 1 if path.name in ("train.yaml", "refine.yaml") else 0
        assert text.count("hydra:job.num") == allowed, path


def scalars(path: Path) -> Iterator[str]:
    lines = (line.partition(" #")[0].partition(": ")[2].strip() for line in path.open())
    return (line for line in lines if line)
