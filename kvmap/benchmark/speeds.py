"""From samples of one length to what stands in a result: medians, paired ratios, stages, blocks."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from kvmap.benchmark.arms import Arm, Timing
from kvmap.benchmark.measure import Sample, paired_ratio
from kvmap.benchmark.result import ArmSpeed, BlockCount, PeakMemory, StageTime
from kvmap.evaluation.statistics import Estimate
from kvmap.runtime.answer import Stats

Floors = Callable[[Stats], dict[str, float]]
"""From an answer's account to the least seconds of its stages."""


class Speeds:
    """All arms at one length.

    Args:
        samples: Of every arm on the same prompts, the native target among them.
        floors: The least time of an answer's stages.
        trained: Whether prompts of this length lie within the models' trained context.
    """

    def __init__(self, samples: Sequence[Sample], floors: Floors, trained: bool = True) -> None:
        self._floors, self._trained = floors, trained
        self._timings: dict[str, list[Timing]] = {}
        for sample in sorted(samples, key=lambda sample: sample.prompt):
            self._timings.setdefault(sample.arm, []).append(sample.timing)

    def of(self, arm: Arm, native: Arm, peak: Sequence[PeakMemory] = ()) -> ArmSpeed:
        """One arm against the native target."""
        timings, natives = self._timings[arm.name], self._timings[native.name]

        def times(read: Callable[[Timing], float]) -> Estimate:
            return paired_ratio([read(each) for each in natives], [read(each) for each in timings])

        stats = [timing.stats for timing in timings if timing.stats is not None]
        return ArmSpeed(
            arm=arm.name,
            role=arm.role,
            ttft_ms=1000 * median(each.ttft for each in timings),
            tpot_ms=1000 * median(each.tpot for each in timings),
            total_ms=1000 * median(each.latency for each in timings),
            tokens_per_second=median(each.throughput for each in timings),
            ttft=times(lambda timing: timing.ttft),
            tpot=times(lambda timing: timing.tpot),
            total=times(lambda timing: timing.latency),
            acceptance=_acceptance(stats) if self._trained else None,
            stages=self._stages(stats),
            blocks=_blocks(stats),
            peak=list(peak),
        )

    def _stages(self, stats: Sequence[Stats]) -> list[StageTime]:
        spent = [each.stages.seconds for each in stats]
        least = [self._floors(each) for each in stats]
        names = dict.fromkeys(name for each in spent for name in each)
        return [
            StageTime(
                name,
                1000 * median(each.get(name, 0.0) for each in spent),
                1000 * median(each.get(name, 0.0) for each in least)
                if any(name in each for each in least)
                else None,
            )
            for name in names
        ]


def _acceptance(stats: Sequence[Stats]) -> float | None:
    proposed = sum(each.proposed for each in stats)
    return sum(each.accepted for each in stats) / proposed if proposed else None


def _blocks(stats: Sequence[Stats]) -> list[BlockCount]:
    counts = Counter(size for each in stats for size in each.blocks)
    return [BlockCount(size, rounds) for size, rounds in sorted(counts.items())]
