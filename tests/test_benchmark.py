"""kvmap-benchmark: pairing, intervals, floors, the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Workshop, call
from engines import engine, prompts

from kvmap.benchmark.arms import Arm, EngineArm, GenerateArm, Timing
from kvmap.benchmark.floors import Rates, Work, stage_floors
from kvmap.benchmark.measure import measure, paired_ratio
from kvmap.cli.benchmark import main
from kvmap.pair import ModelPair
from kvmap.runtime.options import Options


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


def test_every_arm_answers_every_prompt_after_a_warm_up() -> None:
    class Counting(Arm):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.seen: list[tuple[int, int]] = []

        def answer(self, prompt: list[int], new_tokens: int) -> Timing:  # type: ignore[override]
            self.seen.append((len(prompt), new_tokens))
            return Timing(1.0, 2.0, (1, 2))

    arms = [Counting("a"), Counting("b")]
    samples = measure(arms, [[1, 2], [3, 4]], 5, lambda _: None)
    assert [arm.seen for arm in arms] == [[(2, 5)] * 3] * 2
    assert sorted((s.arm, s.prompt) for s in samples) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_arms_answer_alike(random_pair: ModelPair) -> None:
    answering = engine(random_pair, repair=1000)
    source, target = random_pair.source.load(), random_pair.target.load()
    arms = [
        EngineArm("native", answering, "target"),
        EngineArm("cold", answering, "mapped"),
        EngineArm("warm", answering, "mapped", warm=True),
        GenerateArm("generate", target),
        GenerateArm("assisted", target, source),
    ]
    for ids in prompts(3, 40):
        timings = [arm.answer(ids, 9) for arm in arms]
        assert all(0 < t.ttft < t.latency and len(t.tokens) == 9 for t in timings)
        assert len({t.tokens for t in timings[:3]}) == 1
    assert answering.live_bytes == 0


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
    floors = stage_floors(stats, answering.source, runner, answering.mapper, rates)
    assert set(floors) == {"source prefill", "map", "repair", "draft", "verify"}
    assert all(0 < floor < 1 for floor in floors.values())


def test_the_command_prints_tables_and_keeps_every_sample(
    source_folder: Path, target_folder: Path, tmp_path: Path
) -> None:
    shop = Workshop(tmp_path, source_folder, target_folder)
    assert shop.train(tmp_path / "run", "mapper=ridge").status == 0
    out = tmp_path / "samples.json"
    done = call(
        main, *shop.pair, f"runs={tmp_path}", "lengths=[40,70]", "prompts=2", "new_tokens=6",
        "repair.tokens=4", f"out={out}",
    )  # fmt: skip
    assert done.status == 0, done.err
    for word in ("best by", "ridge + repair 4, cold", "target, assisted", "floor", "70 prompt"):
        assert word in done.out
    kept = json.loads(out.read_text())
    assert len(kept["samples"]) == 2 * 2 * 6
    assert kept["provenance"]["versions"]["torch"]
