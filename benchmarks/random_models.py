"""Models and mappers of real shapes with random weights: speed does not depend on the numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from math import prod

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen3Config

from kvmap.kv import KVShape
from kvmap.mappers.ridge import Ridge
from kvmap.pair import ModelSpec, Side
from kvmap.skeleton import skeleton


def qwen3(
    hidden: int, intermediate: int, layers: int, heads: int, tied: bool, head_dim: int = 128
) -> Qwen3Config:
    """A configuration of the Qwen3 family, in what its sizes share as published."""
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=head_dim,
        max_position_embeddings=40_960,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=tied,
    )


QWEN3_4B = qwen3(2560, 9728, 36, 32, tied=True)
QWEN3_32B = qwen3(5120, 25_600, 64, 64, tied=False)
TINY_SOURCE = qwen3(32, 64, 3, 16, tied=True, head_dim=8)
TINY_TARGET = qwen3(48, 96, 4, 16, tied=False, head_dim=8)
for _tiny in (TINY_SOURCE, TINY_TARGET):
    _tiny.vocab_size = 512


class RandomSide(Side):
    """A model of a pair that is made instead of loaded.

    Args:
        config: Its shape.
        dtype: Of weights and KV.
        device: Where it is made; nothing passes through the host.
    """

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype, device: torch.device) -> None:
        name = str(dtype).removeprefix("torch.")
        super().__init__(ModelSpec("random", dtype=name, device=str(device)))
        self._config = config

    @cached_property
    def whole_config(self) -> PretrainedConfig:
        """The configuration."""
        return self._config

    @property
    def weights(self) -> int:
        """How many numbers the model holds."""
        config = self.config
        output = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
        return output + sum(prod(each.shape) for each in skeleton(config).parameters())

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self.weights * self.dtype.itemsize

    def load(self) -> PreTrainedModel:
        """The model, initialised on its device."""
        with torch.device(self.spec.device):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(self.config, dtype=self.dtype)
        return model.eval().requires_grad_(False)


def random_ridge(
    source: KVShape, target: KVShape, k: int, dtype: torch.dtype, device: torch.device
) -> Ridge:
    """Ridge with random weights, each target layer reading the k source layers around its depth."""
    with _default(dtype), torch.device(device):
        mapper = Ridge(source, target, k=k, inputs="own")
    mapper.weight.normal_(std=mapper.weight.shape[2] ** -0.5)
    mapper.bias.zero_()
    mapper.lambdas.zero_()
    for layer, read in enumerate(mapper.source_layers):
        centre = layer * (source.layers - 1) / max(target.layers - 1, 1)
        first = min(max(round(centre - (k - 1) / 2), 0), source.layers - k)
        read.copy_(torch.arange(first, first + k))
    return mapper.eval()


def ridge_bytes(source: KVShape, target: KVShape, k: int, dtype: torch.dtype) -> int:
    """Memory of :func:`random_ridge`."""
    return 2 * target.layers * (k * source.width + 1) * target.width * dtype.itemsize


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
