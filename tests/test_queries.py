"""Queries seen in passing are those the model's attention uses."""

import torch
from torch import Tensor

from kvmap import cache
from kvmap.pair import ModelPair
from kvmap.queries import prefill_with_queries


def attention_outputs(pair: ModelPair, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys, values, queries, and what enters each layer's o_proj ``[L, B, Q, G, D]``."""
    model = pair.target.load()
    wanted = torch.tensor([3, 11, 29])
    seen: list[Tensor] = []
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
        for layer in model.get_decoder().layers
    ]
    kv, queries = prefill_with_queries(model, ids, wanted)
    for hook in hooks:
        hook.remove()
    outputs = torch.stack(seen)[:, :, wanted].unflatten(-1, (4, 16))
    return kv.keys, kv.values, queries, outputs


def test_queries_with_exact_kv_give_the_models_own_attention_output(
    random_pair: ModelPair,
) -> None:
    ids = torch.randint(0, 320, (2, 30), generator=torch.Generator().manual_seed(0))
    keys, values, queries, outputs = attention_outputs(random_pair, ids)
    assert queries.shape == (4, 2, 4, 3, 16)
    keys, values = (x.repeat_interleave(2, dim=2) for x in (keys, values))
    scores = queries @ keys.transpose(-1, -2) * random_pair.target.attention_scaling
    causal = torch.arange(30)[None] <= torch.tensor([3, 11, 29])[:, None]
    weights = scores.masked_fill(~causal, -torch.inf).softmax(-1)
    ours = (weights @ values).transpose(2, 3)
    torch.testing.assert_close(ours, outputs, atol=1e-5, rtol=1e-5)


def test_capturing_changes_neither_kv_nor_the_model(random_pair: ModelPair) -> None:
    model = random_pair.target.load()
    before = model.config._attn_implementation
    ids = torch.randint(0, 320, (1, 20))
    plain = cache.prefill(model, ids)
    kv, _ = prefill_with_queries(model, ids, torch.tensor([19]))
    torch.testing.assert_close(kv.keys, plain.keys)
    torch.testing.assert_close(kv.values, plain.values)
    assert model.config._attn_implementation == before
