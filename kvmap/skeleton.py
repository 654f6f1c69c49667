"""What a model looks like, built from its configuration alone: no weights, no memory."""

import torch
from transformers import AutoModel, PretrainedConfig, PreTrainedModel

from kvmap.errors import KVMapError
from kvmap.kv import KVShape


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The language model's part of a configuration; models that also see images nest it."""
    return config.get_text_config(decoder=True)


def kv_shape(config: PretrainedConfig) -> KVShape:
    """Layers, KV heads and head dim that a configuration promises.

    Latent-attention models keep something else than they promise here; see
    :func:`kvmap.cache.probe` for what a model really keeps.

    Raises:
        KVMapError: when the configuration is not that of a transformer decoder.
    """
    config = text_config(config)
    try:
        query_heads = config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or query_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // query_heads
        return KVShape(config.num_hidden_layers, heads, head_dim)
    except AttributeError as error:
        raise KVMapError(
            f"model type '{config.model_type}' has no attention heads kvmap knows of ({error}); "
            "choose a decoder-only transformer"
        ) from error


def skeleton(config: PretrainedConfig) -> PreTrainedModel:
    """The decoder on torch's meta device: modules, shapes and constants, in milliseconds.

    Args:
        config: of any size; a 70-billion-parameter model takes as long as a small one.

    Raises:
        KVMapError: when transformers has no model of this type.
    """
    config = text_config(config)
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(config, dtype=torch.bfloat16)
    except ValueError as error:
        raise KVMapError(
            f"model type '{config.model_type}' is not one that transformers can build; "
            "choose a decoder-only transformer"
        ) from error
    return model.eval()


def attention_scaling(config: PretrainedConfig) -> float:
    """The factor on q·k inside the softmax, usually D ** -0.5, as the model itself states it."""
    for module in skeleton(config).modules():
        scaling = getattr(module, "scaling", None)
        if hasattr(module, "o_proj") and isinstance(scaling, float):
            return scaling
    return kv_shape(config).head_dim ** -0.5
