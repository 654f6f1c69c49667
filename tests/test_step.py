"""Steps of fixed shape, compiled or captured, against forwards that see what is held."""

import gc
import shutil
import weakref
from dataclasses import replace

import pytest
import torch
from engines import engine, prompts
from torch import Tensor

from kvmap.buffer import Buffer
from kvmap.pair import ModelPair
from kvmap.runtime import attention
from kvmap.runtime import step as steps
from kvmap.runtime.options import Options
from kvmap.runtime.runner import Runner
from kvmap.runtime.schedule import Fixed
from kvmap.runtime.step import ROOM, Step, Way

IDS = torch.randint(1, 300, (400,), generator=torch.Generator().manual_seed(0))
OPTIONS = Options(max_new_tokens=16, temperature=0.8, seed=3, logprobs=0, ignore_eos=True)


def stepping(pair: ModelPair, way: Way) -> Runner:
    runner = Runner(pair.target, len(pair.target.tokenizer))
    runner.step = Step(runner.model, runner._by_kind, way)
    return runner


def on_gpu(pair: ModelPair) -> ModelPair:
    return ModelPair(
        "gpu", *(replace(side.spec, device="cuda") for side in (pair.source, pair.target))
    )


def token(position: int, salt: int) -> Tensor:
    return IDS[(position * 7 + salt * 13) % 400, None]


@torch.no_grad()
def check_against_whole(runner: Runner) -> None:
    """Read, step, roll back, step other tokens: always as one that sees only what is held."""
    step, runner.step = runner.step, None
    plain = runner.buffer(300)
    runner.step = step
    fixed = runner.buffer(300)
    assert fixed.capacity % ROOM == 0
    for buffer in (plain, fixed):
        runner.read(IDS[:250], buffer)
    for salt, kept in enumerate((250, 253, 100, 255, 12, 0)):
        for buffer in (plain, fixed):
            buffer.keep(kept)
        for position in range(kept, kept + 9):  # 255 and 256 lie in different parts
            runner.step = None
            wanted = runner.logits(token(position, salt), plain, keep=1)
            runner.step = step
            found = runner.logits(token(position, salt), fixed, keep=1)
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
            assert plain.length == fixed.length == position + 1
        held = zip(fixed.slots(0, fixed.length), plain.slots(0, plain.length), strict=True)
        for mine, theirs in held:
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
        if kept == 100:  # what a block appends and a step follows
            for buffer in (plain, fixed):
                runner.read(IDS[:150], buffer)


def test_a_step_equals_a_forward_that_sees_what_is_held(random_pair: ModelPair) -> None:
    check_against_whole(stepping(random_pair, "eager"))


def test_a_step_keeps_to_its_buffer(random_pair: ModelPair) -> None:
    runner = stepping(random_pair, "eager")
    first, second = runner.buffer(10), runner.buffer(600)
    with torch.no_grad():
        for position in range(20):
            a = runner.logits(token(position, 0), first, keep=1)
            b = runner.logits(token(position, 0), second, keep=1)
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
        runner.logits(token(0, 5), first, keep=1)
        assert (first.length, second.length) == (21, 20)


def test_a_full_buffer_is_left_alone(random_pair: ModelPair) -> None:
    runner = stepping(random_pair, "eager")
    assert runner.step is not None
    buffer = Buffer(runner.side.shape, 2, torch.float32, runner.device)
    for position in range(2):
        runner.step(token(position, 0), buffer)
    before = buffer.kv.keys.clone()
    with pytest.raises(ValueError, match="slots 2 to 3 of 2"):
        runner.step(token(2, 0), buffer)
    assert torch.equal(buffer.kv.keys, before)
    assert buffer.length == 2


def test_memory_goes_with_the_last_reference_after_steps(random_pair: ModelPair) -> None:
    runner = stepping(random_pair, "eager")
    buffer = runner.buffer(10)
    with torch.no_grad():
        runner.logits(token(0, 0), buffer, keep=1)
    gone = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_a_compiled_step_is_compiled_once_for_all_sizes(random_pair: ModelPair) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    runner = stepping(random_pair, "compiled")
    check_against_whole(runner)
    with torch.no_grad():
        for room in (2 * ROOM, 5 * ROOM):
            runner.logits(token(0, 0), runner.buffer(room), keep=1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("schedule", [Fixed(1), Fixed(5)])
def test_answers_are_the_same_with_steps(
    random_pair: ModelPair, monkeypatch: pytest.MonkeyPatch, schedule: Fixed
) -> None:
    monkeypatch.setattr(steps, "WAYS", {"cpu": "eager"})
    plain = engine(random_pair, schedule=schedule, confidence=0.2)
    fixed = engine(random_pair, schedule=schedule, confidence=0.2, compile=True)
    assert plain.source.step is plain.target.step is None
    assert fixed.source.step is not None
    assert fixed.target.step is not None
    for mode in ("mapped", "source", "target"):
        asked = replace(OPTIONS, mode=mode)  # type: ignore[arg-type]
        for ids in prompts(5, 60):
            # The second turn continues buffers that live on.
            first = plain.generate(ids, asked)
            assert fixed.generate(ids, asked).tokens == first.tokens
            longer = [*ids, *first.tokens, 7, 8]
            answers = [each.generate(longer, asked) for each in (plain, fixed)]
            assert answers[0].tokens == answers[1].tokens
            assert answers[0].stats.reused == answers[1].stats.reused > 0
            for one, other in zip(answers[0].logprobs, answers[1].logprobs, strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_attention_in_parts_is_attention() -> None:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(1, 8, 1, 16, generator=draw)
    key, value = (torch.randn(1, 2, 2 * attention.PART, 16, generator=draw) for _ in range(2))
    for held in (1, attention.PART, attention.PART + 3, 2 * attention.PART):
        mask = (torch.arange(2 * attention.PART) < held)[None, None, None]
        wanted, _ = attention.grouped(torch.nn.Module(), query, key, value, mask, 0.3)
        found = attention.split(query, key, value, mask, 0.3).transpose(1, 2)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_step_equals_a_forward_that_sees_what_is_held(random_pair: ModelPair) -> None:
    check_against_whole(stepping(on_gpu(random_pair), "captured"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_captured_steps_do_not_grow_over_requests(random_pair: ModelPair) -> None:
    answering = engine(on_gpu(random_pair), schedule=Fixed(4), confidence=0.0, compile=True)
    plain = engine(on_gpu(random_pair), schedule=Fixed(4), confidence=0.0)
    taken = []
    for ids in [prompts(1, 1)[0] * 50, *prompts(20, 80)]:
        asked = replace(OPTIONS, reuse=False, logprobs=None)
        assert answering.generate(ids, asked).tokens == plain.generate(ids, asked).tokens
        torch.cuda.synchronize()
        taken.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(answering.source.step._graphs) == 0  # type: ignore[union-attr]
    assert taken[-1][0] <= taken[2][0] + (1 << 20)
    assert taken[-1][1] <= taken[2][1] + (8 << 20)
