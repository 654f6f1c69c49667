"""KV to and from transformers' cache. Only :mod:`kvmap.buffer` knows that API beside this file.

Everywhere here keys are rotated, as a model caches them. A cache holds the full length of every
layer; sliding-window and linear-attention models are refused before they come here
(:mod:`kvmap.compatibility`).
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, get_layer_types_and_kwargs

from kvmap.kv import KV


class LayerProbe(NamedTuple):
    """What one layer keeps for a token.

    Attributes:
        kind: the class of transformers' cache layer.
        keys: ``(H, D)`` of the keys kept, None when the layer keeps none.
        values: ``(H, D)`` of the values kept, None when the layer keeps none.
    """

    kind: str
    keys: tuple[int, int] | None
    values: tuple[int, int] | None


def empty() -> Cache:
    """A cache without tokens; layers appear as the model writes them."""
    return DynamicCache()


def read(cache: Cache) -> KV:
    """The cache's rotated KV, ``[L, B, H, T, D]`` each, copied out."""
    layers = [cast(DynamicLayer, layer) for layer in cache.layers]
    return KV(
        torch.stack([cast(Tensor, layer.keys) for layer in layers]),
        torch.stack([cast(Tensor, layer.values) for layer in layers]),
    )


def write(kv: KV) -> Cache:
    """A cache that holds rotated KV, ``[L, B, H, T, D]`` each, as views without a copy.

    The model's next forward appends to fresh tensors, so ``kv`` itself is never changed.
    """
    cache = Cache(layers=[])
    for keys, values in zip(kv.keys.unbind(), kv.values.unbind(), strict=True):
        layer = DynamicLayer()
        layer.keys, layer.values = keys, values
        layer.device, layer.is_initialized = keys.device, True
        cache.layers.append(layer)
    return cache


def length(cache: Cache) -> int:
    """Tokens in the cache.

    Raises:
        ValueError: when layers disagree, which transformers itself does not notice.
    """
    lengths = {int(cast(DynamicLayer, layer).get_seq_length()) for layer in cache.layers} or {0}
    if len(lengths) > 1:
        raise ValueError(f"layers of one cache hold {sorted(lengths)} tokens")
    return lengths.pop()


def truncate_to(cache: Cache, tokens: int) -> None:
    """Keep the first ``tokens`` tokens, in place.

    Raises:
        ValueError: when the cache holds fewer, or ``tokens`` is negative.
    """
    held = length(cache)
    if not 0 <= tokens <= held:
        raise ValueError(f"cannot keep {tokens} of {held} tokens")
    if tokens < held:
        cache.crop(tokens - held)  # a negative count means "remove" in every version


def forward(
    model: PreTrainedModel,
    input_ids: Tensor,
    cache: Cache,
    positions: Tensor,
    logits_to_keep: int | Tensor = 0,
    visible: Tensor | None = None,
) -> Tensor:
    """Run tokens after the cache's, which grows by them.

    Every token sees the whole cache and the new tokens before it, unless ``visible`` says
    otherwise. Positions decide rotation only, so they need not follow on from the cache.

    Args:
        model: where to run.
        input_ids: ``[B, T]``, only the new tokens.
        cache: what came before; :func:`empty` for nothing.
        positions: ``[T]`` positions of the new tokens.
        logits_to_keep: logits of only the last so many tokens, 0 for all; or of which tokens.
        visible: ``[T, cache + T]``, which tokens of cache and input each new token sees; needs
            attention that takes a boolean mask, as PyTorch's fused one does.

    Returns:
        Logits ``[B, kept, vocabulary]``.

    Raises:
        ValueError: when the number of positions is not the number of tokens.
    """
    batch, tokens = input_ids.shape
    if positions.shape != (tokens,):
        raise ValueError(f"{tokens} tokens at positions of shape {tuple(positions.shape)}")
    total = length(cache) + tokens
    if visible is None:
        mask = torch.ones(batch, total, dtype=torch.long, device=input_ids.device)
    elif visible.shape == (tokens, total):
        mask = visible[None, None]
    else:
        raise ValueError(f"a mask {tuple(visible.shape)} for {tokens} tokens of {total}")
    output = model(
        input_ids=input_ids,
        cache=cache,
        position_ids=positions[None].expand(batch, -1),
        attention_mask=mask,
        use_cache=True,
        logits_to_keep=logits_to_keep,
    )
    if length(cache) != total:
        raise ValueError(f"the cache holds {length(cache)} tokens instead of {total}")
    return output.logits


@torch.no_grad()
def fill(model: PreTrainedModel, input_ids: Tensor, positions: Tensor | None = None) -> Cache:
    """A cache of the tokens ``[B, T]``, without computing logits.

    Args:
        model: where to run.
        input_ids: ``[B, T]``.
        positions: ``[T]``, 0 to T-1 by default.
    """
    batch, tokens = input_ids.shape
    if positions is None:
        positions = torch.arange(tokens, device=input_ids.device)
    cache = empty()
    model.get_decoder()(
        input_ids=input_ids,
        cache=cache,
        position_ids=positions[None].expand(batch, -1),
        use_cache=True,
    )
    return cache


def prefill(model: PreTrainedModel, input_ids: Tensor, positions: Tensor | None = None) -> KV:
    """The model's own rotated KV, ``[L, B, H, T, D]`` each, of the tokens ``[B, T]``.

    Args:
        model: where to run.
        input_ids: ``[B, T]``.
        positions: ``[T]``, 0 to T-1 by default.
    """
    return read(fill(model, input_ids, positions))


@torch.no_grad()
def probe(model: PreTrainedModel) -> list[LayerProbe]:
    """What each layer really keeps, seen by running three tokens.

    Works on the meta device too, so that it takes no weights. Here the cache is the kind that the
    configuration asks for, unlike elsewhere, so that layers which keep no full history show.
    """
    decoder = model.get_decoder()
    cache = DynamicCache(config=decoder.config)
    decoder(
        input_ids=torch.zeros(1, 3, dtype=torch.long, device=model.device),
        cache=cache,
        use_cache=True,
    )
    return [
        LayerProbe(
            type(layer).__name__,
            _heads_and_dim(getattr(layer, "keys", None)),
            _heads_and_dim(getattr(layer, "values", None)),
        )
        for layer in cache.layers
    ]


def attention_kinds(config: PretrainedConfig) -> list[str]:
    """Each layer's attention as transformers caches it, ``full_attention`` or another word.

    Latent attention (MLA) is told by its compressed width and named ``latent_attention``.
    """
    config = config.get_text_config(decoder=True)
    if getattr(config, "kv_lora_rank", None):
        return ["latent_attention"] * config.num_hidden_layers
    kinds, _ = get_layer_types_and_kwargs(config)
    return list(kinds)


def _heads_and_dim(kept: Tensor | None) -> tuple[int, int] | None:
    return None if kept is None else (kept.shape[1], kept.shape[3])
