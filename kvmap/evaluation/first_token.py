"""How soon every candidate's first token comes, paired with the native target's."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import torch

from kvmap.benchmark.measure import paired_ratio
from kvmap.evaluation.candidates import Export, Mappers
from kvmap.evaluation.measure import decided_by
from kvmap.evaluation.passages import Passage, fingerprint
from kvmap.evaluation.progress import Progress
from kvmap.evaluation.result import Candidate, ColdTTFT
from kvmap.evaluation.units import Unit, Units
from kvmap.pair import ModelPair
from kvmap.runtime.engine import Engine
from kvmap.runtime.options import Mode, Options
from kvmap.runtime.settings import Repair

PROMPTS = 5


@dataclass(frozen=True)
class FirstToken:
    """One prompt.

    Attributes:
        target: Seconds until the native target's first token.
        cold: Seconds until that through the mapper, the source's prefill included.
    """

    target: float
    cold: float


class FirstTokens:
    """Times candidates one after another, and on every prompt the native target beside each.

    Args:
        pair: The models.
        engine: Gives the engine, when the first number is missing; it is left with the last
            candidate's mapper and repair.
        passages: Of the development set; the first few are used.
        prompt: P, tokens of a prompt.
        mappers: Of the exports.
        units: Where finished work lies.
        progress: Told of every candidate.
    """

    def __init__(
        self,
        pair: ModelPair,
        engine: Callable[[], Engine],
        passages: Sequence[Passage],
        prompt: int,
        mappers: Mappers,
        units: Units,
        progress: Progress,
    ) -> None:
        self._pair, self._engine, self._mappers, self._units = pair, engine, mappers, units
        self._progress = progress
        self._passages = list(passages[:PROMPTS])
        self._prompts = [passage.ids[:prompt].tolist() for passage in self._passages]

    def of(self, candidates: Sequence[Candidate], exports: Sequence[Export]) -> list[Candidate]:
        """The same candidates, each with its cold TTFT."""
        return [self._timed(candidate, exports) for candidate in candidates]

    def _timed(self, candidate: Candidate, exports: Sequence[Export]) -> Candidate:
        export = next(each for each in exports if each.facts == candidate.mapper)
        repair = Repair(candidate.repair, candidate.prefix)
        unit = self._unit(export, repair)
        found = self._units.load(unit, FirstToken)
        if found is None:
            self._engine().use(self._mappers(export.key).mapper, repair)
            found = self._measure()
            self._units.store(unit, found)
        self._progress.step(f"first token: {export.config.family}, repair {repair.tokens}")
        cold = [each.cold for each in found]
        times = paired_ratio([each.target for each in found], cold)
        return replace(candidate, cold_ttft=ColdTTFT(1000 * median(cold), times))

    def _measure(self) -> list[FirstToken]:
        for mode in ("target", "mapped"):
            self._seconds(self._prompts[0][::-1], mode)  # a warm-up
        found = []
        for number, prompt in enumerate(self._prompts):
            if number % 2:  # who goes first takes turns
                target, cold = self._seconds(prompt, "target"), self._seconds(prompt, "mapped")
            else:
                cold, target = self._seconds(prompt, "mapped"), self._seconds(prompt, "target")
            found.append(FirstToken(target, cold))
        return found

    def _seconds(self, prompt: list[int], mode: Mode) -> float:
        options = Options(1, mode=mode, ignore_eos=True, reuse=False)
        return self._engine().generate(prompt, options).stats.ttft

    def _unit(self, export: Export, repair: Repair) -> Unit:
        pair = self._pair
        return Unit(
            f"first token {export.config.family}",
            decided_by(pair)
            | {
                "mapper": export.key,
                "repair": asdict(repair),
                "prompts": [fingerprint(self._passages), len(self._prompts[0])],
                "devices": [pair.source.spec.device, pair.target.spec.device],
                "threads": torch.get_num_threads(),
            },
        )
