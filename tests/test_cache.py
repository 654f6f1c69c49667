"""A cache read, written and rolled back is the cache the model would have made."""

import pytest
import torch
from transformers import PreTrainedModel

from kvmap import cache
from kvmap.kv import KV
from kvmap.pair import ModelPair


@pytest.fixture
def model(random_pair: ModelPair) -> PreTrainedModel:
    return random_pair.target.load()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 320, (2, 24), generator=torch.Generator().manual_seed(3))


def test_prefill_has_the_legends_shape_and_is_the_models_own(
    model: PreTrainedModel, ids: torch.Tensor
) -> None:
    kv = cache.prefill(model, ids)
    assert kv.keys.shape == kv.values.shape == (4, 2, 2, 24, 16)
    own = model(ids, use_cache=True).cache
    for layer, keys, values in zip(own.layers, kv.keys, kv.values, strict=True):
        torch.testing.assert_close(keys, layer.keys)
        torch.testing.assert_close(values, layer.values)


@pytest.mark.parametrize("prefix", [1, 11, 23])
def test_suffix_on_a_written_cache_equals_the_whole_forward(
    model: PreTrainedModel, ids: torch.Tensor, prefix: int
) -> None:
    whole = model(ids).logits
    held = cache.write(cache.prefill(model, ids[:, :prefix]))
    suffix = cache.forward(model, ids[:, prefix:], held, torch.arange(prefix, 24))
    torch.testing.assert_close(suffix, whole[:, prefix:], atol=1e-5, rtol=1e-5)
    assert cache.length(held) == 24


def test_forward_on_an_empty_cache_equals_the_whole_forward(
    model: PreTrainedModel, ids: torch.Tensor
) -> None:
    logits = cache.forward(model, ids, cache.empty(), torch.arange(24), logits_to_keep=3)
    torch.testing.assert_close(logits, model(ids).logits[:, -3:], atol=1e-5, rtol=1e-5)


def test_a_jump_in_positions_does_not_hide_earlier_tokens(
    model: PreTrainedModel, ids: torch.Tensor
) -> None:
    """Tokens at 0-3 and 100-103 in one forward equal the same in two forwards."""
    positions = torch.cat((torch.arange(4), torch.arange(100, 104)))
    once = cache.forward(model, ids[:, :8], cache.empty(), positions)
    held = cache.empty()
    cache.forward(model, ids[:, :4], held, positions[:4])
    twice = cache.forward(model, ids[:, 4:8], held, positions[4:])
    torch.testing.assert_close(once[:, 4:], twice, atol=1e-5, rtol=1e-5)
    filled = cache.read(cache.fill(model, ids[:, :8], positions))
    torch.testing.assert_close(filled.keys, cache.read(held).keys, atol=1e-5, rtol=1e-5)


def test_positions_decide_the_rotation(model: PreTrainedModel, ids: torch.Tensor) -> None:
    held = cache.write(cache.prefill(model, ids[:, :12]))
    wrong = cache.forward(model, ids[:, 12:], held, torch.arange(40, 52))
    assert not torch.allclose(wrong, model(ids).logits[:, 12:], atol=1e-2)


def test_write_adopts_without_a_copy_and_leaves_its_tensors_alone(
    model: PreTrainedModel, ids: torch.Tensor
) -> None:
    kv = cache.prefill(model, ids[:, :12])
    before = KV(kv.keys.clone(), kv.values.clone())
    held = cache.write(kv)
    assert held.layers[1].keys.data_ptr() == kv.keys[1].data_ptr()
    cache.forward(model, ids[:, 12:], held, torch.arange(12, 24))
    cache.truncate_to(held, 3)
    cache.forward(model, ids[:, 3:6], held, torch.arange(3, 6))
    assert torch.equal(kv.keys, before.keys)
    assert torch.equal(kv.values, before.values)


def test_read_undoes_write(model: PreTrainedModel, ids: torch.Tensor) -> None:
    kv = cache.prefill(model, ids)
    again = cache.read(cache.write(kv))
    assert torch.equal(again.keys, kv.keys)
    assert torch.equal(again.values, kv.values)


@pytest.mark.parametrize("held", [0, 1, 9])
def test_truncate_to_keeps_exactly_the_first_tokens(held: int) -> None:
    """For every number of tokens to keep, 0 and all included."""
    for keep in range(held + 1):
        kv = KV(torch.randn(3, 1, 2, held, 4), torch.randn(3, 1, 2, held, 4))
        short = cache.write(kv)
        cache.truncate_to(short, keep)
        assert cache.length(short) == keep
        assert torch.equal(cache.read(short).keys, kv.keys[:, :, :, :keep])
        assert torch.equal(cache.read(short).values, kv.values[:, :, :, :keep])


@pytest.mark.parametrize("keep", [-1, 10])
def test_truncate_to_refuses_what_is_not_there(keep: int) -> None:
    held = cache.write(KV(torch.randn(3, 1, 2, 9, 4), torch.randn(3, 1, 2, 9, 4)))
    with pytest.raises(ValueError, match=f"cannot keep {keep} of 9"):
        cache.truncate_to(held, keep)
    assert cache.length(held) == 9


def test_rollback_and_redo_equals_the_straight_way(
    model: PreTrainedModel, ids: torch.Tensor
) -> None:
    held = cache.fill(model, ids[:, :10])
    cache.forward(model, ids[:, :7], held, torch.arange(10, 17))  # a wrong draft
    cache.truncate_to(held, 10)
    logits = cache.forward(model, ids[:, 10:], held, torch.arange(10, 24))
    torch.testing.assert_close(logits, model(ids).logits[:, 10:], atol=1e-5, rtol=1e-5)


def test_layers_of_different_length_are_noticed() -> None:
    held = cache.write(KV(torch.randn(2, 1, 2, 9, 4), torch.randn(2, 1, 2, 9, 4)))
    held.layers[1].crop(-2)
    with pytest.raises(ValueError, match=r"\[7, 9\]"):
        cache.length(held)


def test_positions_must_match_the_tokens(model: PreTrainedModel, ids: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="24 tokens"):
        cache.forward(model, ids, cache.empty(), torch.arange(23))


def test_gradients_flow_through_a_written_cache(model: PreTrainedModel, ids: torch.Tensor) -> None:
    kv = cache.prefill(model, ids[:, :12])
    keys = kv.keys.clone().requires_grad_()
    held = cache.write(KV(keys, kv.values))
    cache.forward(model, ids[:, 12:], held, torch.arange(12, 24)).sum().backward()
    assert keys.grad is not None
    assert bool((keys.grad.flatten(1).norm(dim=1) > 0).all())


def test_probe_sees_what_each_layer_keeps(model: PreTrainedModel) -> None:
    assert cache.probe(model) == [cache.LayerProbe("DynamicLayer", (2, 16), (2, 16))] * 4
