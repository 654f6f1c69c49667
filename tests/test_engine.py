"""The invariants of the runtime: what speculation, mapping and memory must never change."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from engines import Fixed as FixedMapper
from engines import Noise, engine, prompts, same_engine
from torch import Tensor

from kvmap.buffer import Buffer
from kvmap.errors import KVMapError
from kvmap.pair import ModelPair
from kvmap.runtime import engine as engine_module
from kvmap.runtime.answer import Answer
from kvmap.runtime.draft import Draft
from kvmap.runtime.engine import Engine
from kvmap.runtime.options import Abandoned, Mode, Options, RequestError
from kvmap.runtime.schedule import Adaptive, Fixed, Off
from kvmap.runtime.settings import Repair
from kvmap.runtime.transfer import Link
from kvmap.runtime.verify import Verifier

SAMPLED = Options(max_new_tokens=24, temperature=0.8, top_p=0.95, top_k=50, seed=11, reuse=False)
GREEDY = Options(max_new_tokens=12, reuse=False)


def own_tokens(pair: ModelPair, ids: list[int], count: int) -> list[int]:
    """The target's greedy tokens as transformers finds them."""
    model = pair.target.load()
    out = model.generate(  # type: ignore[operator]
        torch.tensor([ids]), max_new_tokens=count, do_sample=False, pad_token_id=0,
        suppress_tokens=list(range(len(pair.target.tokenizer), 384)),
    )  # fmt: skip
    return out[0, len(ids) :].tolist()


def same_answer(one: Answer, other: Answer) -> bool:
    """Whether two answers agree in everything that a client sees."""
    near = all(
        a.token == b.token and abs(a.logprob - b.logprob) < 1e-3
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
    )
    facts = [(a.tokens, a.text, a.finish_reason, a.stats.generated) for a in (one, other)]
    return near and facts[0] == facts[1]


def test_repairing_the_whole_prompt_is_the_target_whatever_the_mapper(
    random_pair: ModelPair,
) -> None:
    answering = engine(random_pair, Noise, repair=10_000)
    for ids in prompts(52, 120):
        answer = answering.generate(ids, GREEDY)
        assert (answer.stats.mapped, answer.stats.repaired) == (0, len(ids))
        assert list(answer.tokens) == own_tokens(random_pair, ids, 12)


@pytest.mark.parametrize(("repair", "prefix"), [(0, 0), (1, 3), (8, 0), (5, 200)])
def test_exact_kv_through_the_path_is_the_target(
    random_pair: ModelPair, repair: int, prefix: int
) -> None:
    answering = same_engine(random_pair, repair=repair, prefix=prefix)
    for ids in prompts(13, 90, seed=repair):
        answer = answering.generate(ids, GREEDY)
        stats = answer.stats
        assert stats.mapped + stats.repaired == len(ids)
        assert stats.repaired == min(len(ids), max(repair, 1) + prefix)
        assert list(answer.tokens) == own_tokens(random_pair, ids, 12)


def test_a_wrong_cache_changes_the_answer(random_pair: ModelPair) -> None:
    ids = prompts(1, 1)[0] * 40
    assert (
        engine(random_pair, Noise, repair=1).generate(ids, GREEDY).tokens
        != same_engine(random_pair, repair=1).generate(ids, GREEDY).tokens
    )


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_no_schedule_and_no_confidence_changes_the_tokens(
    random_pair: ModelPair, options: Options
) -> None:
    asked = replace(options, logprobs=0, ignore_eos=True)
    mapper = FixedMapper
    plain = engine(random_pair, mapper, schedule=Off())
    ways = [
        engine(random_pair, mapper, schedule=schedule, confidence=confidence)
        for schedule, confidence in (
            (Adaptive(), 0.4), (Adaptive(1, 3), 0.0), (Fixed(1), 0.0), (Fixed(9), 0.2),
        )
    ]  # fmt: skip
    for ids in prompts(50, 100):
        wanted = plain.generate(ids, asked)
        for way in ways:
            assert same_answer(way.generate(ids, asked), wanted)


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["always wrong", "always right", "sometimes right"])
def test_what_the_draft_says_never_changes_the_tokens(
    random_pair: ModelPair, monkeypatch: pytest.MonkeyPatch, kind: str, options: Options
) -> None:
    asked = replace(options, logprobs=0, ignore_eos=True)
    wanted = [engine(random_pair, schedule=Off()).generate(ids, asked) for ids in prompts(6, 60)]
    honest = Draft.propose
    current: list[int] = []

    def lying(self: Draft, committed: list[int], count: int) -> Tensor:
        honest(self, committed, count)  # reads the tokens as it would
        right = current[len(committed) : len(committed) + count]
        told = [
            token if kind == "always right" or (kind == "sometimes right" and at % 3) else
            (token + 1) % 300
            for at, token in enumerate(right, start=len(committed))
        ]  # fmt: skip
        return torch.tensor(told)

    monkeypatch.setattr(Draft, "propose", lying)
    for ids, want in zip(prompts(6, 60), wanted, strict=True):
        current[:] = [*ids, *want.tokens]
        answer = engine(random_pair, schedule=Fixed(5)).generate(ids, asked)
        assert same_answer(answer, want)
        stats = answer.stats
        if kind == "always right":
            assert stats.accepted == stats.proposed
            assert stats.bonus == sum(block > 0 for block in stats.blocks)
        if kind == "always wrong":
            assert stats.accepted == 0
            assert stats.corrected == len(stats.blocks) - stats.blocks.count(0)
        assert stats.generated == 1 + stats.accepted + stats.corrected + stats.bonus + (
            stats.blocks.count(0)
        )


def test_caches_hold_the_committed_tokens_less_one(
    random_pair: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose, verify = Draft.propose, Verifier.verify
    committed_now: list[int] = []

    def proposing(self: Draft, committed: list[int], count: int) -> Tensor:
        assert self._buffer.length <= len(committed) - 1
        committed_now[:] = committed
        proposals = propose(self, committed, count)
        assert self._buffer.length == len(committed) + len(proposals) - 1
        return proposals

    def verifying(self: Verifier, last: int, proposals: Tensor | None) -> object:
        if proposals is not None:
            assert last == committed_now[-1]
            assert self._buffer.length == len(committed_now) - 1
        return verify(self, last, proposals)

    monkeypatch.setattr(Draft, "propose", proposing)
    monkeypatch.setattr(Verifier, "verify", verifying)
    answering = engine(random_pair, schedule=Fixed(4))
    for ids in prompts(8, 50):
        answering.generate(ids, SAMPLED)
    assert committed_now


def test_no_freed_slot_is_ever_attended(
    random_pair: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(SAMPLED, reuse=True)
    wanted = [
        engine(random_pair, schedule=Fixed(4)).generate(ids, asked).tokens for ids in prompts(8, 50)
    ]
    keep, make = Buffer.keep, Buffer.__init__

    def poison(buffer: Buffer) -> None:
        for part in buffer.slots(buffer.length, buffer.capacity):
            part.fill_(torch.nan)

    def keeping(self: Buffer, tokens: int) -> None:
        keep(self, tokens)
        poison(self)

    def making(self: Buffer, *arguments: object) -> None:
        make(self, *arguments)  # type: ignore[arg-type]
        poison(self)

    monkeypatch.setattr(Buffer, "keep", keeping)
    monkeypatch.setattr(Buffer, "__init__", making)
    answering = engine(random_pair, schedule=Fixed(4))
    for ids, want in zip(prompts(8, 50), wanted, strict=True):
        assert answering.generate(ids, asked).tokens == want


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("mode", ["mapped", "target", "source"])
def test_chunks_equal_all_at_once(random_pair: ModelPair, chunk: int, mode: str) -> None:
    asked = replace(SAMPLED, mode=mode)  # type: ignore[arg-type]
    for ids in prompts(6, 80):
        whole, parts = (
            engine(random_pair, chunk=size, prefix=2).generate(ids, asked) for size in (0, chunk)
        )
        assert whole.tokens == parts.tokens


@pytest.mark.parametrize("chunk", [0, 9])
def test_kv_that_is_copied_on_its_way_is_the_same(
    random_pair: ModelPair, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    ids = prompts(1, 1)[0] * 50
    wanted = engine(random_pair).generate(ids, SAMPLED).tokens
    monkeypatch.setattr(
        engine_module, "Link", lambda source, target: Link(source, target, force=True)
    )
    copying = engine(random_pair, chunk=chunk)
    copying.self_test()
    assert not copying.link.local
    assert copying.generate(ids, SAMPLED).tokens == wanted
    copying.generate(ids, replace(SAMPLED, mode="source", reuse=True))
    warm = copying.generate(ids, replace(SAMPLED, reuse=True))
    assert warm.stats.warm == len(ids) - 1
    assert warm.tokens == wanted


class Ending:
    """The same answer with and without blocks, ended in some way."""

    def __init__(self, pair: ModelPair) -> None:
        self.ids = prompts(1, 1, seed=3)[0] * 9
        self.plain = engine(pair, schedule=Off())
        self.blocks = [
            engine(pair, schedule=Fixed(4), confidence=0.0),
            engine(pair, schedule=Fixed(7), confidence=0.3),
            engine(pair, schedule=Adaptive(2, 9)),
        ]
        self.whole = self.plain.generate(self.ids, SAMPLED)

    def check(self, options: Options) -> Answer:
        wanted = self.plain.generate(self.ids, options)
        for way in self.blocks:
            assert same_answer(way.generate(self.ids, options), wanted)
        return wanted


@pytest.fixture
def ending(random_pair: ModelPair) -> Ending:
    return Ending(random_pair)


def test_an_end_token_at_every_place_ends_the_answer_there(ending: Ending) -> None:
    tokens = ending.whole.tokens
    for place, token in enumerate(tokens):
        answer = ending.check(replace(SAMPLED, stop_token_ids=(token,), logprobs=2))
        first = tokens.index(token)
        assert answer.tokens == tokens[: first + 1]
        assert answer.finish_reason == "stop"
        assert len(answer.logprobs) == len(answer.tokens), place


def test_a_length_at_every_place_ends_the_answer_there(ending: Ending) -> None:
    for length in range(1, 25):
        answer = ending.check(replace(SAMPLED, max_new_tokens=length, logprobs=0))
        assert answer.tokens == ending.whole.tokens[:length]
        assert answer.finish_reason == "length"


def test_a_stop_string_at_every_place_ends_the_answer_there(ending: Ending) -> None:
    text = ending.whole.text
    for start in range(0, len(text) - 3, 2):
        stop = text[start : start + 3]
        if "\ufffd" in stop:
            continue
        answer = ending.check(replace(SAMPLED, stop=(stop,), logprobs=0))
        assert answer.text == text[: text.index(stop)]
        assert answer.finish_reason == "stop"


def test_min_tokens_keeps_the_answer_from_ending(ending: Ending) -> None:
    ends = tuple(ending.whole.tokens[:6])
    for least in (0, 1, 5, 24):
        answer = ending.check(replace(SAMPLED, stop_token_ids=ends, min_tokens=least, logprobs=0))
        assert len(answer.tokens) >= least
        assert not set(answer.tokens[: max(least - 1, 0)]) & set(ends)


def test_a_seed_decides_the_answer_and_another_changes_it(random_pair: ModelPair) -> None:
    ids = prompts(1, 1)[0] * 20
    one, same, other = (
        engine(random_pair).generate(ids, replace(SAMPLED, seed=seed)).tokens for seed in (1, 1, 2)
    )
    assert one == same != other


def test_log_probabilities_are_the_targets_own(random_pair: ModelPair) -> None:
    ids = prompts(1, 1)[0] * 20
    answering = same_engine(random_pair)
    answer = answering.generate(ids, replace(SAMPLED, logprobs=3))
    logits = random_pair.target.load()(torch.tensor([[*ids, *answer.tokens]])).logits[0]
    scores = logits[:, : len(answering.tokenizer)].log_softmax(-1)
    for at, each in enumerate(answer.logprobs):
        row = scores[len(ids) - 1 + at]
        assert each.logprob == pytest.approx(float(row[each.token]), abs=1e-4)
        assert [token for token, _ in each.top] == row.topk(3).indices.tolist()


@pytest.mark.parametrize("mode", ["mapped", "target", "source"])
def test_a_conversation_reads_only_what_is_new(random_pair: ModelPair, mode: str) -> None:
    options = replace(SAMPLED, mode=mode, reuse=True)  # type: ignore[arg-type]
    remembering, forgetting = same_engine(random_pair), same_engine(random_pair)
    ids, held = prompts(1, 1)[0] * 30, 0
    for turn in range(4):
        answer = remembering.generate(ids, options)
        assert answer.tokens == forgetting.generate(ids, replace(options, reuse=False)).tokens
        stats = answer.stats
        assert stats.reused == held
        assert stats.prompt == stats.reused + stats.mapped + stats.repaired + stats.prefilled
        held = len(ids) + len(answer.tokens) - 1
        ids = [*ids, *answer.tokens, 5 + turn, 17, 200]


@pytest.mark.parametrize("chunk", [0, 6])
def test_the_target_takes_over_from_the_source_without_reading(
    random_pair: ModelPair, chunk: int
) -> None:
    answering, ids = engine(random_pair, repair=3, chunk=chunk), prompts(1, 1)[0] * 30
    cold = answering.generate(ids, SAMPLED)
    alone = answering.generate(ids, replace(SAMPLED, mode="source", reuse=True))
    warm = answering.generate(ids, replace(SAMPLED, reuse=True))
    assert warm.tokens == cold.tokens
    assert (warm.stats.warm, warm.stats.mapped, warm.stats.repaired) == (29, 27, 3)
    assert "source prefill" not in warm.stats.stages.seconds
    longer = [*ids, *alone.tokens, 7, 8, 9, 10, 11]
    answering.forget()
    answering.generate(ids, replace(SAMPLED, mode="source", reuse=True))
    after = answering.generate(longer, replace(SAMPLED, reuse=True))
    assert after.stats.warm == len(ids) + 23
    assert after.tokens == engine(random_pair, repair=3).generate(longer, SAMPLED).tokens


def test_a_prompt_that_is_wholly_there_is_answered_again(random_pair: ModelPair) -> None:
    answering, ids = same_engine(random_pair), prompts(1, 1)[0] * 30
    first = answering.generate(ids, SAMPLED)
    again = answering.generate(ids, replace(SAMPLED, reuse=True))
    third = answering.generate(ids, replace(SAMPLED, reuse=True))
    assert first.tokens == again.tokens == third.tokens
    assert (again.stats.reused, third.stats.reused) == (0, len(ids) - 1)


def test_one_beginning_serves_two_conversations(random_pair: ModelPair) -> None:
    answering = same_engine(random_pair)
    shared = prompts(1, 1)[0] * 30
    options = replace(SAMPLED, reuse=True)
    answering.generate(shared, options)
    for tail in ([7, 8, 9], [9, 8, 7]):
        answer = answering.generate(shared + tail, options)
        assert answer.stats.reused >= len(shared) - 1
        assert answer.tokens == same_engine(random_pair).generate(shared + tail, options).tokens


def test_sessions_are_bounded_by_bytes(random_pair: ModelPair) -> None:
    answering = same_engine(random_pair, session_bytes=300_000)
    for ids in prompts(12, 90):
        answering.generate(ids, replace(SAMPLED, reuse=True))
        assert answering.live_bytes <= 300_000
    answering.forget()
    assert answering.live_bytes == 0


def test_giving_up_frees_the_caches_and_keeps_no_session(random_pair: ModelPair) -> None:
    answering, ids = same_engine(random_pair), prompts(1, 1)[0] * 30
    for rounds in range(4):
        stream = answering.stream(ids, replace(SAMPLED, reuse=True))
        for _ in range(rounds):
            next(stream)
        stream.close()
        del stream
        assert answering.live_bytes == 0
    whole = answering.stream(ids, replace(SAMPLED, reuse=True))
    while next(whole).finish_reason is None:
        pass
    whole.close()  # the last piece was not delivered
    del whole
    assert answering.live_bytes == 0


def test_an_aborted_turn_leaves_the_one_before_it(random_pair: ModelPair) -> None:
    answering, ids = same_engine(random_pair), prompts(1, 1)[0] * 30
    options = replace(SAMPLED, reuse=True)
    first = answering.generate(ids, options)
    after = [*ids, *first.tokens, 4, 5, 6]
    for rounds in range(3):
        stream = answering.stream(after, replace(options, max_new_tokens=24 + 40 * rounds))
        for _ in range(rounds):
            next(stream)
        stream.close()
    again = answering.generate(after, options)
    assert again.stats.reused == len(after) - 4
    assert again.tokens == same_engine(random_pair).generate(after, options).tokens


def test_the_guard_falls_back_to_the_target(random_pair: ModelPair) -> None:
    ids = prompts(1, 1)[0] * 40
    always = engine(random_pair, Noise, repair=8, guard=-100.0).generate(ids, GREEDY)
    never = engine(random_pair, Noise, repair=8, guard=100.0).generate(ids, GREEDY)
    assert always.stats.fell_back
    assert list(always.tokens) == own_tokens(random_pair, ids, 12)
    assert (always.stats.mapped, always.stats.prefilled) == (0, len(ids))
    assert not never.stats.fell_back
    assert never.stats.guard_difference is not None


def test_short_prompts_may_go_native(random_pair: ModelPair) -> None:
    answering = engine(random_pair, Noise, native_below=30)
    for ids in (prompts(1, 1)[0] * 29, prompts(1, 1)[0] * 30):
        stats = answering.generate(ids, GREEDY).stats
        assert (stats.mapped == 0) == (len(ids) < 30)


@pytest.mark.parametrize("mode", ["mapped", "target", "source"])
def test_a_prefill_that_nobody_waits_for_ends_at_the_next_chunk(
    random_pair: ModelPair, mode: Mode
) -> None:
    answering, options = engine(random_pair, chunk=8, repair=1), replace(GREEDY, mode=mode)
    ids, asked = prompts(1, 1)[0] * 60, 0

    def wanted() -> bool:
        nonlocal asked
        asked += 1
        return asked < 4

    with pytest.raises(Abandoned):
        next(answering.stream(ids, options, wanted))
    assert asked == 4  # of eight chunks
    assert answering.live_bytes == 0
    fresh = engine(random_pair, chunk=8, repair=1).generate(ids, options)
    assert answering.generate(ids, options).tokens == fresh.tokens


def test_the_source_alone_is_the_source(random_pair: ModelPair) -> None:
    swapped = ModelPair("swapped", random_pair.target.spec, random_pair.source.spec)
    for ids in prompts(6, 50):
        answer = engine(random_pair).generate(ids, replace(GREEDY, mode="source"))
        assert list(answer.tokens) == own_tokens(swapped, ids, 12)


def test_sampling_has_the_verifiers_distribution(random_pair: ModelPair) -> None:
    """The second token, which a draft proposed, over many seeds, with early stop and schedule."""
    from scipy.stats import chisquare

    answering, ids = same_engine(random_pair, confidence=0.5), prompts(1, 1)[0] * 5
    differs = engine(random_pair, confidence=0.5, repair=1000)
    model, known = random_pair.target.load(), len(answering.tokenizer)

    def chances(tokens: list[int]) -> Tensor:
        logits = model(torch.tensor([tokens])).logits[0, -1, :known]
        best = logits.topk(4)
        return torch.zeros(known).scatter(0, best.indices, best.values.softmax(-1))

    for answers in (answering, differs):
        draws = [
            answers.generate(ids, Options(3, 1.0, top_k=4, seed=seed, ignore_eos=True)).tokens[:2]
            for seed in range(600)
        ]
        first = max({a for a, _ in draws}, key=[a for a, _ in draws].count)
        second = [b for a, b in draws if a == first]
        for seen, chance in (
            ([a for a, _ in draws], chances(ids)),
            (second, chances([*ids, first])),
        ):
            kept = chance.nonzero()[:, 0].tolist()
            assert set(seen) <= set(kept)
            counts = [seen.count(token) for token in kept]
            wanted = [float(chance[token]) * len(seen) for token in kept]
            scale = sum(counts) / sum(wanted)
            assert chisquare(counts, [each * scale for each in wanted]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("ids", "options", "says"),
    [
        ([], {}, "empty"),
        ([1] * 20, {"max_new_tokens": 10**6}, "20 tokens and 1000000 new ones exceed the 4096"),
        ([100_000], {}, "token id 100000"),
    ],
)
def test_what_cannot_be_answered_is_told(
    random_pair: ModelPair, ids: list[int], options: dict[str, int], says: str
) -> None:
    with pytest.raises(RequestError, match=says):
        engine(random_pair).stream(ids, Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_new_tokens", 0), ("temperature", -1.0), ("top_p", 0.0), ("top_k", -1), ("logprobs", 21),
     ("min_tokens", 99), ("mode", "magic"), ("stop", ("",))],
)  # fmt: skip
def test_options_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{name}="):
        Options(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda pair: engine(pair, repair=-1),
        lambda pair: engine(pair, confidence=1.5),
        lambda pair: engine(pair, schedule=Fixed(0)),
        lambda pair: engine(pair, schedule=Adaptive(5, 4)),
        lambda pair: Engine(pair, None),
    ],
)
def test_settings_out_of_range_are_refused(
    random_pair: ModelPair, make: Callable[[ModelPair], Engine]
) -> None:
    with pytest.raises(KVMapError):
        make(random_pair)


def test_a_request_without_a_mapper_is_refused(random_pair: ModelPair) -> None:
    native = Engine(random_pair, None, engine(random_pair, mode="target").settings)
    assert native.generate([1, 2, 3], GREEDY).stats.mode == "target"
    with pytest.raises(RequestError, match="mode=mapped"):
        native.stream([1, 2, 3], replace(GREEDY, mode="mapped"))


def test_an_engine_that_changes_its_mapper_is_an_engine_of_that_mapper(
    random_pair: ModelPair,
) -> None:
    first, second = engine(random_pair), engine(random_pair, repair=9)
    second.mapper.weight.mul_(-1)
    options = Options(12, ignore_eos=True)
    prompt = prompts(1, 1)[0] * 40
    before = first.generate(prompt, options)
    first.use(second.mapper, Repair(9))
    assert first.live_bytes == 0, "nothing that the other mapper made is gone on with"
    after = first.generate(prompt, options)
    assert (before.stats.repaired, after.stats.repaired) == (4, 9)
    assert after.tokens == second.generate(prompt, options).tokens != before.tokens
