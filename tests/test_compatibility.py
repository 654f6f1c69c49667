"""Every pair gets its verdict from what the models are, with the reason named."""

from pathlib import Path

import pytest
import torch
from transformers import (
    CohereConfig,
    DeepseekV3Config,
    Gemma3TextConfig,
    GPT2Config,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SmolLM3Config,
)

from kvmap.compatibility import LEARNED, MATCHED, Compatibility, compare
from kvmap.errors import KVMapError
from kvmap.pair import ModelPair, ModelSpec
from tests.conftest import make_tokenizer

SMALL = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WITHOUT_HEAD_DIM = {key: value for key, value in SMALL.items() if key != "head_dim"}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def against(source: Path, config: PretrainedConfig, folder: Path) -> ModelPair:
    """A pair of a whole source and a target that is a configuration and a tokenizer only."""
    config.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return ModelPair("test", ModelSpec(str(source)), ModelSpec(str(folder)))


def row(result: Compatibility, name: str) -> tuple[str, str, str]:
    return next(fact[1:] for fact in result.facts if fact.name == name)


SERVED = {
    "matched": (Qwen3Config(**SMALL), MATCHED),
    "another layer count": (Qwen3Config(**SMALL | {"num_hidden_layers": 9}), MATCHED),
    "yarn": (Qwen3Config(**SMALL | {"rope_parameters": YARN}), MATCHED),
    "experts": (Qwen3MoeConfig(**SMALL), MATCHED),
    "another architecture": (LlamaConfig(**SMALL), MATCHED),
    "other heads": (Qwen3Config(**SMALL | {"num_key_value_heads": 4}), LEARNED),
    "other head dim": (Qwen3Config(**SMALL | {"head_dim": 32}), LEARNED),
}
REFUSED = {
    "sliding": (Gemma3TextConfig(**SMALL), "target.*gemma3_text.*sliding-window attention"),
    "all sliding": (MistralConfig(**SMALL), "target.*mistral.*sliding-window attention"),
    "linear": (Qwen3NextConfig(**SMALL), "target.*qwen3_next.*linear attention"),
    "latent": (DeepseekV3Config(**WITHOUT_HEAD_DIM), "target.*deepseek_v3.*latent"),
    "dynamic": (LlamaConfig(**SMALL | {"rope_parameters": DYNAMIC}), "target.*llama.*dynamic"),
    "interleaved": (CohereConfig(**WITHOUT_HEAD_DIM), "target.*cohere.*interleaved"),
    "no rotary in a layer": (SmolLM3Config(**SMALL), r"target.*smollm3.*layers \[3\]"),
    "no rotary": (GPT2Config(), "target.*gpt2.*no rotary"),
}


@pytest.mark.parametrize("name", SERVED)
def test_served_pairs(name: str, source_folder: Path, tmp_path: Path) -> None:
    config, verdict = SERVED[name]
    result = compare(against(source_folder, config, tmp_path))
    assert result.verdict == verdict
    result.require()
    assert all((fact.fits == "yes") for fact in result.facts) == (verdict == MATCHED)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_pairs(name: str, source_folder: Path, tmp_path: Path) -> None:
    config, reason = REFUSED[name]
    result = compare(against(source_folder, config, tmp_path))
    assert result.refused
    assert any(fact.fits == "no" for fact in result.facts)
    with pytest.raises(KVMapError, match=f"refused: .*{reason}"):
        result.require()


def test_a_refused_source_is_named_as_the_source(source_folder: Path, tmp_path: Path) -> None:
    pair = against(source_folder, Gemma3TextConfig(**SMALL), tmp_path)
    swapped = ModelPair("test", pair.target.spec, pair.source.spec)
    assert compare(swapped).verdict.startswith("refused: the source cannot be used")


def test_different_tokenizers_are_refused(source_folder: Path, tmp_path: Path) -> None:
    pair = against(source_folder, Qwen3Config(**SMALL), tmp_path)
    make_tokenizer(("entirely other words",)).save_pretrained(tmp_path)
    result = compare(pair)
    assert row(result, "tokenizer")[2] == "no"
    with pytest.raises(KVMapError, match="different tokenizers"):
        result.require()


def test_a_padded_vocabulary_is_no_obstacle(source_folder: Path, tmp_path: Path) -> None:
    result = compare(against(source_folder, Qwen3Config(**SMALL), tmp_path))
    assert row(result, "vocabulary") == ("384", "400", "yes")


def test_shapes_come_from_the_probe_not_only_from_the_configuration(
    source_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A latent cache that no word in the configuration gives away is still refused."""
    pair = against(source_folder, DeepseekV3Config(**WITHOUT_HEAD_DIM), tmp_path)
    monkeypatch.setattr(
        "kvmap.cache.attention_kinds", lambda config: ["full_attention"] * config.num_hidden_layers
    )
    assert compare(pair).refused


def test_probe_runs_both_models(random_pair: ModelPair) -> None:
    result = compare(random_pair, probe=True)
    assert result.verdict == MATCHED
    source, target, _ = row(result, "keys at p and p+5")
    assert source.startswith("differ by")
    assert target.startswith("differ by")


def test_probe_says_when_there_are_no_weights(source_folder: Path, tmp_path: Path) -> None:
    result = compare(against(source_folder, Qwen3Config(**SMALL), tmp_path), probe=True)
    assert result.verdict == MATCHED
    assert "weights are not on this machine" in row(result, "keys at p and p+5")[1]


def test_the_shift_test_refuses_a_norm_after_the_rotation(
    source_folder: Path, tmp_path: Path
) -> None:
    """Configuration and shapes look right; only the keys tell that stripping is wrong."""
    pair = against(source_folder, HunYuanDenseV1Config(**SMALL), tmp_path)
    torch.manual_seed(0)
    model = HunYuanDenseV1ForCausalLM(HunYuanDenseV1Config(**SMALL))
    for layer in model.model.layers:
        torch.nn.init.uniform_(layer.self_attn.key_layernorm.weight, 0.1, 3.0)
    model.save_pretrained(tmp_path)
    assert compare(pair).verdict == MATCHED
    assert "its rotation cannot be taken off" in compare(pair, probe=True).verdict


def test_the_shift_test_passes_llama_in_half_precision(source_folder: Path, tmp_path: Path) -> None:
    config = LlamaConfig(**SMALL)
    pair = against(source_folder, config, tmp_path)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    assert compare(pair, probe=True).verdict == MATCHED
