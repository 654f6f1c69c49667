"""A pair is lazy, tells what it is in plain values, and fails in one sentence."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from transformers import Ministral3Config, Mistral3Config, Mistral3ForConditionalGeneration

from kvmap import cache
from kvmap.errors import KVMapError
from kvmap.identity import tokenizer_digest
from kvmap.kv import KVShape
from kvmap.pair import ModelPair, ModelSpec, Side
from kvmap.queries import prefill_with_queries
from tests.conftest import make_tokenizer

CONF = Path(__file__).parent.parent / "conf" / "pair"
PAIRS = sorted(file.stem for file in CONF.glob("*.yaml"))


def test_sides_tell_shapes_without_loading(random_pair: ModelPair) -> None:
    assert random_pair.source.shape == KVShape(3, 2, 16)
    assert random_pair.target.shape == KVShape(4, 2, 16)
    assert random_pair.target.query_heads == 4
    assert random_pair.target.attention_scaling == 0.25


def test_a_loaded_model_is_frozen_and_in_evaluation_mode(random_pair: ModelPair) -> None:
    model = random_pair.target.load()
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.dtype == torch.float32


def test_bfloat16_keeps_the_frequencies_in_float32(source_folder: Path) -> None:
    side = Side(ModelSpec(str(source_folder), dtype="bfloat16"))
    model = side.load()
    assert model.dtype == side.dtype == torch.bfloat16
    assert model.get_decoder().rotary_emb.inv_freq.dtype == torch.float32


def test_auto_is_the_checkpoints_dtype(source_folder: Path, tmp_path: Path) -> None:
    side = Side(ModelSpec(str(source_folder)))
    assert side.dtype == torch.float32
    side.load().to(torch.bfloat16).save_pretrained(tmp_path)
    assert Side(ModelSpec(str(tmp_path))).dtype == torch.bfloat16


def test_target_to_source_swaps_the_sides(source_folder: Path, target_folder: Path) -> None:
    specs = ModelSpec(str(source_folder)), ModelSpec(str(target_folder))
    pair = ModelPair("reverse", *specs, direction="target_to_source")
    assert (pair.source.spec, pair.target.spec) == specs[::-1]


def test_identity_is_plain_and_holds_no_path(random_pair: ModelPair, source_folder: Path) -> None:
    text = json.dumps(dataclasses.asdict(random_pair.source.identity()))
    assert str(source_folder) not in text
    assert random_pair.source.identity() != random_pair.target.identity()


def test_identity_follows_contents_not_place(source_folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(source_folder, moved)
    first, second = (Side(ModelSpec(str(f))).identity() for f in (source_folder, moved))
    assert first == second
    weights = load_file(moved / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, moved / "model.safetensors", {"format": "pt"})
    assert Side(ModelSpec(str(moved))).identity().revision != first.revision


def test_identity_knows_the_dtype(source_folder: Path) -> None:
    dtypes = ("float32", "bfloat16")
    sides = [Side(ModelSpec(str(source_folder), dtype=dtype)).identity() for dtype in dtypes]
    assert [side.dtype for side in sides] == list(dtypes)


def test_one_tokenizer_in_two_folders_has_one_digest(
    random_pair: ModelPair, tmp_path: Path
) -> None:
    assert random_pair.source.tokenizer_digest == random_pair.target.tokenizer_digest
    other = make_tokenizer()
    other.chat_template = "{{ messages }}"
    other.padding_side = "left"
    other.model_max_length = 7
    assert tokenizer_digest(other) == random_pair.source.tokenizer_digest


def test_another_vocabulary_has_another_digest() -> None:
    plain, other, added = make_tokenizer(), make_tokenizer(("zzz zzz yyyy yyyy",)), make_tokenizer()
    added.add_tokens(["<think>"])
    assert len({tokenizer_digest(tokenizer) for tokenizer in (plain, other, added)}) == 3


def test_a_model_wrapped_with_vision_is_used_as_its_text_part(tmp_path: Path) -> None:
    text = Ministral3Config(
        vocab_size=384,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    vision = {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
    }
    wrapped = Mistral3Config(text_config=text.to_dict(), vision_config=vision)
    Mistral3ForConditionalGeneration(wrapped).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    side = Side(ModelSpec(str(tmp_path), dtype="float32"))
    assert side.config.model_type == "ministral3"
    assert side.shape == KVShape(2, 2, 16)
    model, ids = side.load(), torch.arange(12)[None]
    kv, queries = prefill_with_queries(model, ids[:, :8], torch.tensor([7]))
    assert kv.shape == side.shape
    assert queries.shape == (2, 1, 4, 1, 16)
    suffix = cache.forward(model, ids[:, 8:], cache.write(kv), torch.arange(8, 12))
    whole = model(input_ids=ids).logits[:, 8:]
    torch.testing.assert_close(suffix, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (ModelSpec("nobody/nothing-1b"), "configuration of 'nobody/nothing-1b'.*HF_HUB_OFFLINE"),
        (ModelSpec("./not/here"), "no folder './not/here'"),
        (ModelSpec("embedded:middle"), "no embedded model 'embedded:middle'"),
    ],
)
def test_a_model_that_cannot_be_had_is_named(spec: ModelSpec, sentence: str) -> None:
    with pytest.raises(KVMapError, match=sentence) as error:
        Side(spec).load()
    assert "\n" not in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has the device")
def test_a_device_that_is_not_there_is_named(source_folder: Path) -> None:
    with pytest.raises(KVMapError, match="no device 'cuda:1' on this machine"):
        Side(ModelSpec(str(source_folder), device="cuda:1")).load()


def test_an_unknown_dtype_is_named(source_folder: Path) -> None:
    with pytest.raises(KVMapError, match="dtype 'float13' is unknown"):
        Side(ModelSpec(str(source_folder), dtype="float13")).load()


def test_an_unknown_direction_is_named(source_folder: Path) -> None:
    spec = ModelSpec(str(source_folder))
    with pytest.raises(KVMapError, match="direction=backwards"):
        ModelPair("x", spec, spec, direction="backwards")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in PAIRS if name != "custom"])
def test_every_configured_pair_builds_without_touching_its_models(name: str) -> None:
    pair = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    assert isinstance(pair, ModelPair)
    assert pair.name == name
    assert pair.source.spec.model != pair.target.spec.model


def test_a_custom_pair_asks_for_its_models(source_folder: Path) -> None:
    config = OmegaConf.load(CONF / "custom.yaml")
    with pytest.raises(Exception, match=r"set pair\.source\.model and pair\.target\.model"):
        instantiate(config)
    config.source.model = config.target.model = str(source_folder)
    assert instantiate(config).source.shape == KVShape(3, 2, 16)
