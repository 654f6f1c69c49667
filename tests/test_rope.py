"""Stripping and applying rotary embedding are exact inverses, and mean what the models mean."""

import pytest
import torch
from torch import Tensor
from transformers import (
    CohereConfig,
    Gemma3TextConfig,
    GlmConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
)

from kvmap import cache
from kvmap.errors import KVMapError
from kvmap.rope import Rotary

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def qwen3(**changes: object) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SMALL | {"head_dim": 16} | changes))


def llama(**changes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SMALL | changes))


def ministral3() -> PreTrainedModel:
    return Ministral3ForCausalLM(Ministral3Config(**SMALL | {"head_dim": 16}))


def phi3() -> PreTrainedModel:
    return Phi3ForCausalLM(Phi3Config(**SMALL | {"partial_rotary_factor": 0.5}))


MODELS = {
    "default": qwen3,
    "linear": lambda: llama(rope_parameters=LINEAR),
    "llama3": lambda: llama(rope_parameters=LLAMA3),
    "yarn": lambda: qwen3(rope_parameters=YARN),
    "yarn of ministral3": ministral3,
    "partial": phi3,
}


@pytest.fixture(params=MODELS, ids=lambda name: name.replace(" ", "_"))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    return MODELS[request.param]().eval().requires_grad_(False)


def keys_before_rotation(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """``[L, B, H, T, D]`` from hooks on each layer's k_norm, k_proj or fused projection."""
    config = model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found = []

    def keep(_module: object, _inputs: object, output: Tensor) -> None:
        if hasattr(model.get_decoder().layers[0].self_attn, "qkv_proj"):
            start = config.num_attention_heads * dim
            output = output[..., start : start + config.num_key_value_heads * dim]
        found.append(output.reshape(*ids.shape, -1, dim).transpose(1, 2))

    hooks = []
    for layer in model.get_decoder().layers:
        names = ("k_norm", "k_proj", "qkv_proj")
        name = next(name for name in names if hasattr(layer.self_attn, name))
        hooks.append(getattr(layer.self_attn, name).register_forward_hook(keep))
    cache.prefill(model, ids)
    for hook in hooks:
        hook.remove()
    return torch.stack(found)


def test_strip_gives_the_keys_before_rotation(model: PreTrainedModel) -> None:
    ids = torch.randint(0, 64, (2, 40))
    positions = torch.arange(40)
    content = keys_before_rotation(model, ids)
    rotated = cache.prefill(model, ids).keys
    rotary = Rotary(model.config)
    assert (rotated - content).abs().max() > 0.1  # there is something to strip
    torch.testing.assert_close(rotary.strip(rotated, positions), content, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rotary.apply(content, positions), rotated, atol=1e-5, rtol=1e-5)


def test_apply_undoes_strip_in_float64(model: PreTrainedModel) -> None:
    rotary = Rotary(model.config)
    keys = torch.randn(3, 1, 2, 50, rotary.shape.head_dim, dtype=torch.float64)
    positions = torch.randperm(400)[:50]
    there = rotary.strip(rotary.apply(keys, positions), positions)
    assert there.dtype == torch.float64
    torch.testing.assert_close(there, keys, atol=1e-12, rtol=1e-12)


def test_content_keys_do_not_depend_on_the_position(model: PreTrainedModel) -> None:
    ids = torch.randint(0, 64, (1, 30))
    here, there = torch.arange(30), torch.arange(30) + 5
    rotary = Rotary(model.config)
    first, second = (cache.prefill(model, ids, p).keys for p in (here, there))
    assert (first - second).abs().max() > 0.1
    torch.testing.assert_close(
        rotary.strip(first, here), rotary.strip(second, there), atol=2e-5, rtol=1e-4
    )


def test_yarn_scales_keys_and_strip_divides_by_the_square() -> None:
    rotary = Rotary(qwen3(rope_parameters=YARN).config)
    keys = torch.randn(1, 16)
    rotated = rotary.apply(keys, torch.tensor([300]))
    assert float(rotated.norm() / keys.norm()) == pytest.approx(1.1386, abs=1e-4)
    assert float(rotary.strip(rotated, torch.tensor([300])).norm()) == pytest.approx(
        float(keys.norm()), rel=1e-5
    )


def test_partial_rotary_leaves_the_last_dims_alone() -> None:
    rotary = Rotary(phi3().config)
    keys = torch.randn(2, 6, 8)
    rotated = rotary.apply(keys, torch.arange(6))
    assert rotary.rotated == 4
    assert torch.equal(rotated[..., 4:], keys[..., 4:])
    assert not torch.allclose(rotated[:, 1:, :4], keys[:, 1:, :4])


def test_half_precision_keys_are_computed_in_float32() -> None:
    rotary = Rotary(qwen3().config)
    keys = torch.randn(2, 50, 16).bfloat16()
    positions = torch.arange(400, 450)
    exact = rotary.apply(keys.float(), positions)
    assert torch.equal(rotary.apply(keys, positions), exact.bfloat16())


def test_rotary_survives_its_json() -> None:
    rotary = Rotary(qwen3(rope_parameters=YARN).config)
    again = Rotary.from_json(rotary.to_json())
    keys = torch.randn(7, 16)
    positions = torch.arange(7) * 31
    assert torch.equal(again.apply(keys, positions), rotary.apply(keys, positions))
    assert again.to_json() == rotary.to_json()
    assert again.shape == rotary.shape == (3, 2, 16)


def test_positions_must_match_the_keys() -> None:
    with pytest.raises(ValueError, match="7 keys at 6 positions"):
        Rotary(qwen3().config).apply(torch.randn(7, 16), torch.arange(6))


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
REFUSED = {
    "dynamic": (LlamaConfig(**SMALL | {"rope_parameters": DYNAMIC}), "llama.* dynamic"),
    "longrope": (Phi3Config(**SMALL | {"rope_parameters": LONGROPE}), "phi3.* longrope"),
    "interleaved": (CohereConfig(**SMALL), "cohere.*interleaved"),
    "interleaved and partial": (GlmConfig(**SMALL | {"head_dim": 16}), "glm.*interleaved"),
    "layers without rotary": (SmolLM3Config(**SMALL | {"num_hidden_layers": 4}), r"layers \[3\]"),
    "differs by layer": (Gemma3TextConfig(**SMALL | {"head_dim": 16}), "layers differently"),
    "none": (GPT2Config(), "gpt2.*no rotary"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_rotary_that_cannot_be_stripped(name: str) -> None:
    config: PretrainedConfig
    config, sentence = REFUSED[name]
    with pytest.raises(KVMapError, match=sentence):
        Rotary(config)
