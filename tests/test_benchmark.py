"""kvmap-benchmark: pairing, intervals, floors, the command."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Workshop, call, one_sentence, read
from conftest import make_tokenizer
from engines import engine, prompts
from fake_engine import FakeEngine
from serving import Running, running

import kvmap
from kvmap.benchmark import floors
from kvmap.benchmark.arms import Arm, EngineArm, GenerateArm, Timing
from kvmap.benchmark.benchmark import Benchmark
from kvmap.benchmark.context import trained_context
from kvmap.benchmark.external import External, ExternalArm
from kvmap.benchmark.floors import Rates, Work, stage_floors
from kvmap.benchmark.mapping import Mapping
from kvmap.benchmark.measure import Sample, measure, paired_ratio
from kvmap.benchmark.memory import RESET, PeakMeter
from kvmap.benchmark.result import BenchmarkResult, BlockCount, PeakMemory, StageTime
from kvmap.benchmark.settings import BenchmarkSettings
from kvmap.benchmark.speeds import Speeds
from kvmap.cli.benchmark import main
from kvmap.errors import KVMapError
from kvmap.pair import ModelPair, ModelSpec
from kvmap.runtime.answer import Stats
from kvmap.runtime.options import Options, RequestError
from kvmap.server.errors import invalid
from kvmap.tiny.prompts import Drawn


@pytest.fixture(autouse=True)
def _small_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(floors.LARGE, "cpu", (128, 2**16))


def test_ratios_are_paired_and_their_interval_is_the_bootstraps() -> None:
    draw = np.random.default_rng(0)
    hard = draw.lognormal(0, 2, 40)  # prompts differ far more than arms do
    slow, fast = 2 * hard * draw.lognormal(0, 0.1, 40), hard
    ratio = paired_ratio(slow, fast)
    assert ratio.value == pytest.approx(float(np.exp(np.log(slow / fast).mean())))
    assert ratio.low < 2 < ratio.high
    spread = np.log(slow / fast).std() / np.sqrt(40)
    assert np.log(ratio.high / ratio.low) == pytest.approx(2 * 1.96 * spread, rel=0.15)
    assert paired_ratio(slow, slow).low == paired_ratio(slow, slow).high == 1.0


class Counting(Arm):
    """Notes what it is asked."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "target")
        self.seen: list[tuple[list[int], int]] = []

    def answer(self, prompt: list[int], new_tokens: int) -> Timing:  # type: ignore[override]
        self.seen.append((prompt, new_tokens))
        return Timing(1.0, 2.0, 2, (1, 2))


def test_every_arm_answers_every_prompt_once_after_a_warm_up_on_another_beginning() -> None:
    arms = [Counting("a"), Counting("b")]
    samples = measure(arms, [[1, 2], [3, 4]], 5, lambda _: None)
    assert [arm.seen for arm in arms] == [[([2, 1], 5), ([1, 2], 5), ([3, 4], 5)]] * 2
    assert sorted((s.arm, s.prompt) for s in samples) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_arms_answer_alike(random_pair: ModelPair) -> None:
    answering = engine(random_pair, repair=1000)
    source, target = answering.source.model, answering.target.model
    arms = [
        EngineArm("native", answering, "target"),
        EngineArm("cold", answering, "mapped"),
        EngineArm("warm", answering, "mapped", warm=True),
        GenerateArm("generate", target),
        GenerateArm("assisted", target, source),
    ]
    assert [arm.role for arm in arms] == ["target", "cold", "warm", "generate", "assisted"]
    for ids in prompts(3, 40):
        timings = [arm.answer(ids, 9) for arm in arms]
        assert all(0 < t.ttft < t.latency and t.generated == len(t.tokens) == 9 for t in timings)
        assert len({t.tokens for t in timings[:3]}) == 1
    assert answering.live_bytes == 0


def test_transformers_arms_share_weights_but_neither_attention_nor_end_tokens(
    random_pair: ModelPair,
) -> None:
    model = engine(random_pair).target.model
    ours, end = model.config._attn_implementation, model.generation_config.eos_token_id
    twin = GenerateArm("generate", model)._model
    assert twin.config._attn_implementation == "sdpa" != ours
    assert [each.data_ptr() for each in twin.parameters()] == [
        each.data_ptr() for each in model.parameters()
    ]
    assert (model.config._attn_implementation, model.generation_config.eos_token_id) == (ours, end)


def test_a_source_cache_that_was_not_kept_is_no_warm_start(random_pair: ModelPair) -> None:
    arm = EngineArm("warm", engine(random_pair, session_bytes=10), "mapped", warm=True)
    with pytest.raises(KVMapError, match=r"20 tokens is larger than runtime.session_bytes=10"):
        arm.answer(list(range(1, 21)), 4)


def test_work_is_what_the_layers_multiply(random_pair: ModelPair) -> None:
    answering = engine(random_pair)
    runner, tokens = answering.target, 7
    layers = [w for n, w in runner.model.named_parameters() if "layers" in n and w.ndim == 2]
    products = 2 * tokens * sum(w.numel() for w in layers)
    work = Work.of(runner, tokens, held=0, forwards=1, logits=0)
    attention = 4 * (tokens * (tokens + 1) / 2) * 4 * 4 * 16
    assert work.flops == pytest.approx(products + attention, rel=0.01)
    rates = Rates.measure(torch.device("cpu"), torch.float32, size=128)
    stats = answering.generate(prompts(1, 1)[0] * 30, Options(12, ignore_eos=True)).stats
    least = stage_floors(stats, answering.source, runner, answering.mapper, rates)
    assert set(least) == {"source prefill", "map", "repair", "draft", "verify"}
    assert all(0 < floor < 1 for floor in least.values())


def stats_of(stages: dict[str, float], proposed: int, accepted: int, blocks: list[int]) -> Stats:
    stats = Stats("mapped", proposed=proposed, accepted=accepted, blocks=blocks)
    for name, seconds in stages.items():
        stats.stages.add(name, seconds)
    return stats


def test_speeds_are_medians_and_acceptance_is_for_trained_lengths_only() -> None:
    native, mapped = Counting("native"), Counting("mapped")
    accounts = [
        stats_of({"map": 0.1, "roll back": 0.5}, 10, 9, [4, 6]),
        stats_of({"map": 0.3, "roll back": 0.5}, 30, 11, [4, 0]),
        stats_of({"map": 0.2, "roll back": 0.5}, 10, 0, [24]),
    ]
    samples = [
        Sample("mapped", 7, n, Timing(0.1, 1.1 + n, 5, stats=stats))
        for n, stats in enumerate(accounts)
    ] + [Sample("native", 7, n, Timing(0.4, 2.2 + 2 * n, 5)) for n in (2, 0, 1)]
    speeds = Speeds(samples, lambda stats: {"map": stats.stages.seconds["map"] / 10})
    found = speeds.of(mapped, native, [PeakMemory("cpu", 5.0)])
    assert (found.ttft_ms, found.total_ms) == (pytest.approx(100), pytest.approx(2100))
    assert found.tpot_ms == pytest.approx(1000 * 2.0 / 4)
    assert found.tokens_per_second == pytest.approx(5 / 2.1)
    assert found.ttft.value == found.ttft.low == found.ttft.high == pytest.approx(4)
    paired = (found.total.low, found.total.high)
    assert paired == pytest.approx((2, 2)), "prompts are paired, whatever their order"
    assert found.acceptance == pytest.approx(20 / 50)
    assert found.stages == [StageTime("map", 200.0, 20.0), StageTime("roll back", 500.0, None)]
    assert found.blocks == [BlockCount(0, 1), BlockCount(4, 2), BlockCount(6, 1), BlockCount(24, 1)]
    assert found.peak == [PeakMemory("cpu", 5.0)]
    beyond = Speeds(samples, lambda stats: {}, trained=False).of(mapped, native)
    assert beyond.acceptance is None
    assert beyond.ttft == found.ttft


def test_mapping_and_reading_go_on_beyond_the_models_positions(random_pair: ModelPair) -> None:
    answering = engine(random_pair, guard=0.0, native_below=10_000)
    few = BenchmarkSettings(map_repeats=3)
    mapping = Mapping(answering, few, context=100, note=pytest.fail)
    for length, random_kv in ((64, False), (4500, True)):
        found = mapping.at(length)
        assert found is not None
        assert (found.length, found.repeats, found.random_kv) == (length, 3, random_kv)
        assert min(found.read_ms, found.source_ms, found.map_ms, found.repair_ms) > 0
        assert found.cold.low <= found.cold.value <= found.cold.high
    assert found.cold.value < found.warm.value, "the source's prefill is in cold alone"
    of_medians = found.read_ms / (found.map_ms + found.repair_ms)
    assert 1 / 8 < of_medians / found.warm.value < 8, "no stage is forgotten, however noisy"
    assert answering.limit == 4096
    with pytest.raises(RequestError):
        answering.generate([1] * 4500)


def test_a_length_that_would_take_too_long_is_left_out_and_said(random_pair: ModelPair) -> None:
    notes: list[str] = []
    patient = BenchmarkSettings(map_repeats=5, map_seconds=2)
    mapping = Mapping(engine(random_pair), patient, context=4096, note=notes.append)
    assert mapping.at(64) is not None
    assert mapping.at(500_000) is None
    (note,) = notes
    assert "at 500000 tokens is left out" in note
    assert "map_seconds=2" in note


def test_a_whole_benchmark_reads_back_as_it_was(random_pair: ModelPair, tmp_path: Path) -> None:
    few = BenchmarkSettings([20, 40], 2, 5, [64], 2, transformers=False)
    asked = []

    def draw(length: int, count: int) -> list[list[int]]:
        asked.append((length, count))
        return [list(range(1 + n, 1 + n + length)) for n in range(count)]

    answering = engine(random_pair)
    result = Benchmark(answering, few, draw).run()
    assert asked == [(20, 2), (40, 2)]
    assert [each.length for each in result.answers] == [20, 40]
    assert [arm.role for arm in result.answers[0].arms] == ["target", "source", "cold", "warm"]
    assert [each.length for each in result.mapping] == [64]
    assert (result.repair, result.context, result.settings) == (4, 4096, few)
    assert result.source_device == result.target_device == "cpu float32"
    native = result.answers[0].find("target")
    assert native.ttft.value == native.total.high == 1
    assert "prefill" in [stage.name for stage in native.stages]
    if RESET.exists():
        assert all(arm.peak[0].mib > 10 for each in result.answers for arm in each.arms)
    result.write(tmp_path)
    assert BenchmarkResult.read(tmp_path) == result


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system does not tell")
def test_the_peak_is_of_the_work_alone() -> None:
    meter = PeakMeter([torch.device("cpu")])
    size = 16 * 2**20
    (before,) = meter.of(lambda: None)
    (at_work,) = meter.of(lambda: torch.ones(size).sum())
    (after,) = meter.of(lambda: None)
    assert at_work.mib - before.mib == pytest.approx(64, abs=16)
    assert after.mib - before.mib == pytest.approx(0, abs=16)


def test_the_embedded_pairs_context_is_what_its_card_says(random_pair: ModelPair) -> None:
    specs = (ModelSpec(f"embedded:{side}") for side in ("source", "target"))
    card = (Path(kvmap.__file__).parent / "tiny/weights/README.md").read_text()
    (line,) = (line for line in card.splitlines() if line.startswith("| trained context"))
    context = trained_context(ModelPair("tiny", *specs))
    assert line.count(f"{context:,}") == 2
    assert trained_context(random_pair) == 4096


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompts": 1}, "prompts=1 gives no interval"),
        ({"lengths": [1]}, "lengths=1 must be a whole number from 2"),
        ({"map_lengths": [64, "x"]}, "map_lengths=x must be"),
        ({"new_tokens": 1}, "new_tokens=1 must be"),
        ({"map_seconds": 0}, "map_seconds=0 must be"),
    ],
)
def test_settings_without_meaning_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(KVMapError, match=says):
        BenchmarkSettings(**changes)  # type: ignore[arg-type]


def test_what_is_asked_of_another_server_is_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KVMapError, match=r"external.url=localhost:1 is no address"):
        External("localhost:1", "m")
    with pytest.raises(KVMapError, match=r"needs external.model"):
        External("http://localhost:1", "")
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(KVMapError, match=r"external.api_key_env=NO_KEY is not set"):
        _ = External("http://localhost:1", "m", "NO_KEY").key
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}/v1"
        with pytest.raises(KVMapError, match=f"external.url={url} does not answer"):
            ExternalArm(External(url, "m"), make_tokenizer())
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(KVMapError, match=r"pip install 'kvmap\[serve\]'"):
        ExternalArm(External("http://localhost:1", "m"), make_tokenizer())


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(FakeEngine(make_tokenizer(), delay=0.02), api_key="secret") as served:
        yield served


@pytest.mark.parametrize("as_text", [False, True])
def test_another_server_is_an_arm_that_sees_the_same_prompts(
    server: Running, monkeypatch: pytest.MonkeyPatch, as_text: bool
) -> None:
    monkeypatch.setenv("THEIR_KEY", "secret")
    tokenizer = make_tokenizer()
    arm = ExternalArm(External(f"{server.url}/v1", "fake", "THEIR_KEY", as_text), tokenizer)
    seen: list[list[int]] = []
    usual = server.engine.stream

    def stream(prompt: list[int], options: Options, *more: object) -> object:
        seen.append(list(prompt))
        assert options.ignore_eos
        assert options.temperature == 0
        return usual(prompt, options, *more)

    monkeypatch.setattr(server.engine, "stream", stream)
    prompt = tokenizer("the red door of the old house")["input_ids"]
    timing = arm.answer(prompt, 10)
    assert seen == [prompt]
    assert timing.generated == 10
    assert 0.02 <= timing.ttft < timing.latency - 0.03
    assert timing.stats is None


def test_what_another_server_refuses_is_one_sentence(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, url = make_tokenizer(), f"{server.url}/v1"
    with pytest.raises(KVMapError, match=r"refuses with status 401"):
        ExternalArm(External(url, "fake"), tokenizer)
    monkeypatch.setenv("THEIR_KEY", "secret")
    with pytest.raises(KVMapError, match=r"status 404 .*check external.model=other"):
        ExternalArm(External(url, "other", "THEIR_KEY"), tokenizer)
    arm = ExternalArm(External(url, "fake", "THEIR_KEY"), tokenizer)
    with pytest.raises(KVMapError, match=r"status 400 .*the lengths that it serves"):
        arm.answer([1] * 600, 4)


def test_a_server_that_knows_less_is_asked_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    import kvmap.server.completion_parameters as theirs

    usual = theirs.CompletionParameters.read.__func__  # type: ignore[attr-defined]

    def strict(cls: type, values: dict[str, object]) -> object:
        if "ignore_eos" in values or "stream_options" in values:
            raise invalid("what is that?")
        return usual(cls, values)

    monkeypatch.setattr(theirs.CompletionParameters, "read", classmethod(strict))
    with running(FakeEngine(make_tokenizer(), block=2)) as served:
        arm = ExternalArm(External(f"{served.url}/v1", "fake"), make_tokenizer())
        timing = arm.answer([1, 2, 3], 7)
    assert 1 <= timing.generated <= 7, "chunks, for want of a count"


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (6, "external, fake gave 6 to 6 tokens instead of 12 at 20 prompt tokens; its total"),
        (1, "external, fake is left out at 20 prompt tokens: an answer came in one piece"),
    ],
)
def test_answers_cut_short_are_said(
    random_pair: ModelPair,
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
    ends: int,
    says: str,
) -> None:
    def token(self: FakeEngine, prompt: object, options: object, place: int) -> int:
        return 0 if place == ends - 1 else 40 + place

    monkeypatch.setenv("THEIR_KEY", "secret")
    monkeypatch.setattr(FakeEngine, "token", token)
    monkeypatch.setattr(FakeEngine, "_ends", lambda *_: frozenset([0]))
    few = BenchmarkSettings([20], 2, 12, [], transformers=False)
    result = Benchmark(
        engine(random_pair),
        few,
        lambda length, count: [[7 + n] * length for n in range(count)],
        external=External(f"{server.url}/v1", "fake", "THEIR_KEY"),
    ).run()
    (length,) = result.answers
    assert (length.find("external") is None) == (ends == 1)
    assert result.notes[0].startswith(says)


@pytest.fixture(scope="module")
def trained(shop: Workshop) -> Path:
    assert shop.train(shop.root / "run", "mapper=ridge").status == 0
    return shop.root


def test_the_command_prints_tables_and_keeps_result_and_samples(
    shop: Workshop, trained: Path
) -> None:
    done = call(
        main, *shop.pair, f"runs={trained}", "lengths=[40,70]", "prompts=2", "new_tokens=4",
        "repair.tokens=4", "map_lengths=[64]", "map_repeats=2", "runtime.native_below=0",
    )  # fmt: skip
    assert done.status == 0, done.err
    for word in ("best by", "ridge + repair 4, cold", "target, assisted", "floor", "70 prompt",
                 "its KV is mapped", "lengths=[40,70]"):  # fmt: skip
        assert word in done.out
    result = BenchmarkResult.read(trained / "run/benchmark")
    assert result.mapper.family == "ridge"
    assert "lengths=[40,70]" in result.command
    assert [len(each.arms) for each in result.answers] == [6, 6]
    kept = read(trained / "run/benchmark/samples.json")
    assert len(kept["samples"]) == 2 * 2 * 6
    assert kept["provenance"]["versions"]["torch"]


def test_no_two_lengths_share_a_document() -> None:
    drawn = Drawn(make_tokenizer(), "test")
    first, second = drawn(20, 2), drawn(30, 2)
    starts = {tuple(ids[:20]) for ids in (*first, *second)}
    assert [len(ids) for ids in (*first, *second)] == [20, 20, 30, 30]
    assert len(starts) == 4


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["lengths=abc"], "lengths=abc must be a list of whole numbers"),
        (["transformers=maybe"], "transformers=maybe must be true or false"),
        (["lengths=[4000]"], "prompts of 4000 tokens and new_tokens=128 exceed the 4096 positions"),
        (["prompts=1"], "prompts=1 gives no interval"),
        (["threads=0"], "threads=0 must be"),
        (["map_seconds=soon"], "map_seconds=soon must be"),
        (["external.url=nowhere", "external.model=x"], "external.url=nowhere is no address"),
        (["external.url=http://127.0.0.1:9/v1"], "needs external.model"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(
    shop: Workshop, trained: Path, asked: list[str], says: str
) -> None:
    assert says in one_sentence(call(main, *shop.pair, f"runs={trained}", *asked))


def test_without_a_mapper_the_native_arms_are_timed(shop: Workshop, tmp_path: Path) -> None:
    done = call(
        main, *shop.pair, "mode=target", "lengths=[30]", "prompts=2", "new_tokens=4",
        f"out_dir={tmp_path}", "transformers=false",
    )  # fmt: skip
    assert done.status == 0, done.err
    result = BenchmarkResult.read(tmp_path)
    assert result.mapper is None
    assert result.mapping == []
    assert [arm.role for arm in result.answers[0].arms] == ["target", "source"]
