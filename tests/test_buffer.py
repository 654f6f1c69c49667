"""Memory allocated once, as transformers sees it."""

import gc
import weakref

import pytest
import torch

from kvmap import cache as caches
from kvmap.pair import ModelPair
from kvmap.runtime.runner import Runner

IDS = torch.randint(1, 300, (60,), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def runner(random_pair: ModelPair) -> Runner:
    return Runner(random_pair.target, len(random_pair.target.tokenizer))


@torch.no_grad()
def test_any_split_gives_the_logits_and_kv_of_the_whole(
    runner: Runner, random_pair: ModelPair
) -> None:
    model = random_pair.target.load()
    exact = model(IDS[None]).logits[0, :, : runner.vocabulary]
    kv = caches.prefill(model, IDS[None])
    for cuts in ([60], [1] * 60, [7, 1, 20, 32], [59, 1]):
        buffer, logits, start = runner.buffer(64), [], 0
        for cut in cuts:
            logits.append(runner.logits(IDS[start : start + cut], buffer, keep=cut))
            start += cut
        torch.testing.assert_close(torch.cat(logits), exact, atol=1e-4, rtol=1e-4)
        for mine, theirs in zip(buffer.slots(0, 60), kv, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_what_was_forgotten_is_written_over(runner: Runner) -> None:
    buffer = runner.buffer(64)
    runner.read(IDS[:40], buffer)
    wanted = runner.logits(IDS[40:50], buffer, keep=10)
    for kept in (39, 25, 0):
        buffer.keep(kept)
        runner.read(IDS[kept:40].flip(0), buffer)
        buffer.keep(kept)
        again = runner.logits(IDS[kept:50], buffer, keep=10)
        torch.testing.assert_close(again, wanted, atol=1e-4, rtol=1e-4)
        buffer.keep(40)


def test_room_is_checked_before_anything_is_written(runner: Runner) -> None:
    buffer = runner.buffer(10)
    with pytest.raises(ValueError, match="slots 0 to 11 of 10"):
        runner.read(IDS[:11], buffer)
    assert buffer.length == 0
    for tokens in (-1, 1):
        with pytest.raises(ValueError, match="cannot keep"):
            buffer.keep(tokens)


def test_memory_goes_with_the_last_reference(runner: Runner) -> None:
    buffer = runner.buffer(10)
    with torch.no_grad():
        runner.read(IDS[:5], buffer)
    gone = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer
        assert gone() is None
    finally:
        gc.enable()
