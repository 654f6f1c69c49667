"""Results that nobody measured, for the tests of the report."""

from dataclasses import replace

from kvmap.benchmark.result import (
    ArmSpeed,
    BenchmarkResult,
    BlockCount,
    LengthSpeed,
    PeakMemory,
    ReadOrMap,
    Role,
    StageTime,
)
from kvmap.corpora.base import CorpusIdentity
from kvmap.evaluation.arms import Arm
from kvmap.evaluation.result import (
    AnswersResult,
    ArmResult,
    Candidate,
    ColdTTFT,
    ContinuationResult,
    DataFacts,
    DiagnosticCorrelation,
    EvaluationResult,
    Finding,
    GreedyResult,
    Handoff,
    HandoffTurn,
    MapperFacts,
    OperatingPoint,
    Replacement,
)
from kvmap.evaluation.settings import Settings
from kvmap.evaluation.statistics import Curve, Estimate, McNemar
from kvmap.identity import Identity
from kvmap.kv import KVShape
from kvmap.provenance import Provenance

DIAGNOSTICS = (
    "r2_keys",
    "r2_values",
    "attention_cosine",
    "key_error_concentration",
    "value_error_concentration",
)
NLL = {"target": 1.0, "source": 2.0, "exact": 1.0, "mapped": 1.2, "mismatched": 5.0, "window": 4.0}


def about(value: float, width: float = 0.05) -> Estimate:
    """An estimate with an interval that lies evenly."""
    return Estimate(value, value - width, value + width, 10)


def facts(family: str = "ridge", number: int = 0, **arguments: object) -> MapperFacts:
    """A mapper; its number is in its folder, its digest and its diagnostics."""
    metrics = {f"val/{name}": 0.5 + 0.01 * number for name in DIAGNOSTICS}
    return MapperFacts(
        export=f"sweep/{number}/export",
        family=family,
        arguments={"k": 1 + number} | arguments,
        weights_sha256=f"{number:064x}",
        collection="none",
        metrics=metrics | {"weights": 1000.0 * (number + 1)},
    )


def continuation(nll: float) -> ContinuationResult:
    """A continuation whose gap goes from 2 (source) to 1 (target) nats/token."""
    curve = Curve([0.9] * 12, [0.8] * 12, [1.0] * 12)
    return ContinuationResult(
        passages=10,
        tokens=12,
        nll=about(nll),
        below_source=about(2 - nll),
        above_target=about(nll - 1),
        gap_closed=about(2 - nll),
        context_used=about((4 - nll) / 3),
        kl=about(0.1),
        same_top=about(0.9),
        kl_by_position=curve,
        same_top_by_position=curve,
        nll_by_passage=[nll] * 10,
    )


def answers(right: int, of: int = 20) -> AnswersResult:
    """Four-way questions of which so many were answered right."""
    share = right / of
    return AnswersResult(
        items=of,
        chance=0.25,
        accuracy=about(share),
        retention=about(share),
        floor_normalised=about((share - 0.25) / 0.75),
        against_target=McNemar(0, of - right, 0.5),
        against_source=McNemar(right, 0, 0.0001),
        repaired_share=0.1,
        passages=list(range(of)),
        distances=[200] * of,
        hits=[place < right for place in range(of)],
    )


def arm_result(arm: Arm, nll: float, right: int) -> ArmResult:
    greedy = GreedyResult(4, 8, about(0.5), about(0.6), about(0.7))
    return ArmResult(
        name=arm.name,
        arm=arm,
        family="ridge" if arm.mapper else "",
        repaired_share=arm.repaired_share(100),
        continuation=continuation(nll),
        choices=answers(right),
        lookups=answers(right),
        greedy=greedy,
    )


def candidate(number: int, gap: float | None, looks: float, times: float | None) -> Candidate:
    """One export of a sweep; every other one is an MLP."""
    return Candidate(
        mapper=facts("mlp" if number % 2 else "ridge", number),
        repair=32,
        prefix=0,
        repaired_share=0.1,
        nll=about(1.5),
        gap_closed=None if gap is None else about(gap),
        context_used=about(0.5),
        lookups=about(looks),
        lookups_floor_normalised=about((looks - 0.25) / 0.75),
        score=min(0.0 if gap is None else gap, looks),
        cold_ttft=None if times is None else ColdTTFT(100 / times, about(times)),
    )


def point(candidates: list[Candidate]) -> OperatingPoint:
    """A choice among candidates: the best; every diagnostic is correlated with gap closed."""
    best = max(candidates, key=lambda each: each.score)
    return OperatingPoint(
        repair=32,
        prefix=0,
        chosen_on="development",
        reported_on="test",
        passages=10,
        why="the best of all",
        candidates=[replace(each, chosen=each is best) for each in candidates],
        correlations=[
            DiagnosticCorrelation(f"val/{name}", quality, len(candidates), about(0.2 * place))
            for place, name in enumerate(DIAGNOSTICS)
            for quality in ("gap_closed", "nll")
        ],
    )


def evaluation(candidates: list[Candidate] | None = None) -> EvaluationResult:
    """An evaluation with everything that a report can show."""
    key = "abc"
    curve = [Arm("mapped", r, 0, key) for r in (0, 8, 32)]
    roles = [Arm("target"), Arm("source"), *curve, Arm("window", 32), Arm("exact", 32),
             Arm("mismatched", 32, 0, key), Arm("depth_nearest", 32, 0, "copy")]  # fmt: skip
    arms = [
        arm_result(arm, NLL.get(arm.role, 3.0), {"mapped": 19, "target": 20}.get(arm.role, 8))
        for arm in roles
    ]
    identity = Identity("model", "revision", "float32", "tokens", KVShape(2, 2, 16), "config")
    chosen = point(candidates or [candidate(n, 0.8, 0.9, 2.0) for n in range(9)])
    turns = [
        HandoffTurn(t, ("source", "target")[t % 2], 10, about(1.1), about(1.0), about(0.1))
        for t in range(1, 5)
    ]
    return EvaluationResult(
        pair="random",
        direction="source_to_target",
        source=identity,
        target=identity,
        mapper=facts(),
        settings=Settings(),
        data=DataFacts(CorpusIdentity("file", "hash", "path=x"), "test-text", "development-text"),
        operating_point=chosen,
        arms=arms,
        curve=[arm.name for arm in curve],
        replacements=[
            Replacement("keys", about(0.2), about(0.1)),
            Replacement("values", about(0.0), None),
            Replacement("layer 0", about(0.3), about(0.2)),
            Replacement("layer 1", about(-0.1), about(0.0)),
        ],
        handoffs=[
            Handoff(mode, "back", 32, 10, 80, turns, about(0.001, 0.0005), about(0.0))
            for mode in ("new tokens", "everything")
        ],
        findings=[Finding("it is better", True, "1"), Finding("it is so", False, "2"),
                  Finding("it is known", None, "3")],
        harness=[],
        seconds=1.0,
        provenance=Provenance(created="then", python="3", versions={}, commit="c0ffee"),
    )  # fmt: skip


def speed(role: Role, ttft: float) -> ArmSpeed:
    """An arm whose target needs 100 ms to the first token and twice that in all."""
    drafted = role in ("cold", "warm")
    stages = [StageTime("prefill", ttft, ttft / 2), StageTime("verify", ttft, None)]
    if drafted:
        stages = [
            StageTime("verify", ttft / 2, None),
            StageTime("draft", ttft / 2, 1.0),
            StageTime("source prefill", ttft / 4, 1.0),
            StageTime("map", ttft / 2, 2.0),
            StageTime("repair", ttft / 4, 1.0),
        ]
    return ArmSpeed(
        arm=role,
        role=role,
        ttft_ms=ttft,
        tpot_ms=ttft / 10,
        total_ms=2 * ttft,
        tokens_per_second=1000 / ttft,
        ttft=about(100 / ttft),
        tpot=about(100 / ttft),
        total=about(100 / ttft),
        acceptance=0.8 if drafted else None,
        stages=stages,
        blocks=[BlockCount(0, 2), BlockCount(4, 8)] if drafted else [],
        peak=[PeakMemory("cpu", 100.0)],
    )


def benchmark() -> BenchmarkResult:
    """Two lengths; mapping is surely sooner than reading from 256 tokens on."""
    times: dict[Role, float] = {"target": 100.0, "source": 10.0, "cold": 40.0, "warm": 30.0}
    return BenchmarkResult(
        pair="random",
        mapper=facts(),
        repair=32,
        prefix=0,
        new_tokens=10,
        source_device="cpu float32",
        target_device="cpu float32",
        threads=1,
        gflops=100.0,
        gbytes=10.0,
        answers=[
            LengthSpeed(length, 4, [speed(role, ttft) for role, ttft in times.items()])
            for length in (128, 512)
        ],
        mapping=[
            ReadOrMap(n, 5, n > 512, n / 10, n / 50, n / 40, 3.0, about(n / 100), about(n / 150))
            for n in (64, 128, 256, 1024)
        ],
        command="kvmap-evaluate runs=sweep",
        provenance=Provenance(created="then", python="3", versions={}, commit="c0ffee"),
    )
