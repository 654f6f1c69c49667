"""One benchmark: every way of answering on the same prompts, and mapping against reading."""

import hashlib
import time
from collections.abc import Callable, Sequence

import torch

from kvmap.benchmark.arms import Arm, EngineArm, GenerateArm
from kvmap.benchmark.context import trained_context
from kvmap.benchmark.external import External, ExternalArm
from kvmap.benchmark.floors import Rates, stage_floors
from kvmap.benchmark.mapping import Mapping
from kvmap.benchmark.measure import Sample, measure
from kvmap.benchmark.memory import PeakMeter
from kvmap.benchmark.report import length_table, mapping_table, rates_line
from kvmap.benchmark.result import BenchmarkResult, LengthSpeed, PeakMemory, ReadOrMap
from kvmap.benchmark.settings import BenchmarkSettings
from kvmap.benchmark.speeds import Speeds
from kvmap.errors import KVMapError
from kvmap.evaluation.result import MapperFacts
from kvmap.pair import Side
from kvmap.provenance import Provenance, command_line
from kvmap.runtime.engine import Engine

Prompts = Callable[[int, int], Sequence[Sequence[int]]]
"""From a length and a number to so many prompts of that many tokens."""


def unheard(_: str) -> None:
    """For what nobody wants to read."""


class Benchmark:
    """Times an engine.

    Args:
        engine: What answers; with a mapper the mapped path is timed, cold and warm.
        settings: How much.
        prompts: Gives them.
        facts: The engine's mapper; None for an engine without.
        external: A server that answers the same prompts.
        say: Hears what is being done.
        show: Hears every table as soon as it is there.

    Attributes:
        samples: Every answer, once :meth:`run` has ended.

    Raises:
        KVMapError: A length does not fit the models, or the server does not answer.
    """

    def __init__(
        self,
        engine: Engine,
        settings: BenchmarkSettings,
        prompts: Prompts,
        facts: MapperFacts | None = None,
        external: External | None = None,
        say: Callable[[str], None] = unheard,
        show: Callable[[str], None] = unheard,
    ) -> None:
        self.engine, self.settings, self.samples = engine, settings, list[Sample]()
        self._prompts, self._facts, self._say, self._show = prompts, facts, say, show
        self._notes: list[str] = []
        self._context = trained_context(engine.pair)
        self._require_room()
        self._external = None if external is None else ExternalArm(external, engine.tokenizer)

    def run(self) -> BenchmarkResult:
        """Measure everything."""
        started, engine = time.monotonic(), self.engine
        rates = Rates.measure(engine.target.device, engine.target.model.dtype)
        self._show(rates_line(str(engine.target.device), torch.get_num_threads(), rates))
        arms = self._arms() if self.settings.prompts else []
        lengths = self.settings.lengths if arms else []
        repair = engine.settings.repair
        drawn = [self._prompts(length, self.settings.prompts) for length in lengths]
        answers = [self._answers(arms, prompts, rates) for prompts in drawn]
        return BenchmarkResult(
            pair=engine.pair.name,
            mapper=self._facts,
            repair=repair.tokens,
            prefix=repair.prefix,
            new_tokens=self.settings.new_tokens,
            source_device=place(engine.pair.source),
            target_device=place(engine.pair.target),
            threads=torch.get_num_threads(),
            gflops=rates.flops / 1e9,
            gbytes=rates.bytes / 1e9,
            answers=answers,
            mapping=self._mapping(),
            command=command_line(),
            provenance=Provenance(),
            settings=self.settings,
            text=fingerprint(drawn),
            context=self._context,
            seconds=time.monotonic() - started,
            notes=self._notes,
        )

    def _require_room(self) -> None:
        new, limit = self.settings.new_tokens, self.engine.limit
        for length in self.settings.lengths if self.settings.prompts else ():
            if length + new > limit:
                raise KVMapError(
                    f"lengths: prompts of {length} tokens and new_tokens={new} exceed the {limit} "
                    "positions of the models; lower one of them"
                )

    def _arms(self) -> list[Arm]:
        """The native target first."""
        engine = self.engine
        arms: list[Arm] = [EngineArm("target", engine, "target")]
        arms.append(EngineArm("source", engine, "source"))
        if engine.mapper is not None:
            repair = engine.settings.repair
            mapped = f"{engine.mapper.family} + repair {repair.tokens}"
            mapped += f" + prefix {repair.prefix}" if repair.prefix else ""
            arms.append(EngineArm(f"{mapped}, cold", engine, "mapped"))
            arms.append(EngineArm(f"{mapped}, warm", engine, "mapped", warm=True))
        if self.settings.transformers:
            source, target = engine.source.model, engine.target.model
            arms.append(GenerateArm("target, generate", target))
            arms.append(GenerateArm("target, assisted", target, source))
        if self._external is not None:
            arms.append(self._external)
        return arms

    def _answers(
        self, arms: Sequence[Arm], prompts: Sequence[Sequence[int]], rates: Rates
    ) -> LengthSpeed:
        engine, settings, length = self.engine, self.settings, len(prompts[0])
        samples = measure(arms, prompts, settings.new_tokens, self._say, settings.seed)
        self.samples += samples
        speeds = Speeds(
            samples,
            lambda stats: stage_floors(stats, engine.source, engine.target, engine.mapper, rates),
            trained=length <= self._context,
        )
        told = [arm for arm in arms if self._streamed(arm, samples)]
        found = [speeds.of(arm, arms[0], self._peak(arm, prompts[0])) for arm in told]
        measured = LengthSpeed(length, len(prompts), found)
        self._show(length_table(measured, settings.new_tokens))
        self._note_short(samples)
        return measured

    def _streamed(self, arm: Arm, samples: Sequence[Sample]) -> bool:
        """Whether all its answers came in more than one piece; another server's may not."""
        if all(sample.timing.tpot > 0 for sample in samples if sample.arm == arm.name):
            return True
        self._note(
            f"{arm.name} is left out at {samples[0].length} prompt tokens: an answer came in one "
            "piece, so there is no time per token"
        )
        return False

    def _peak(self, arm: Arm, prompt: Sequence[int]) -> list[PeakMemory]:
        """Of one more answer, which nobody times."""
        if arm.role == "external":
            return []
        meter = PeakMeter([self.engine.source.device, self.engine.target.device])
        return meter.of(lambda: arm.answer(prompt, self.settings.new_tokens))

    def _mapping(self) -> list[ReadOrMap]:
        if self.engine.mapper is None or not self.settings.map_lengths:
            return []
        mapping = Mapping(self.engine, self.settings, self._context, self._note)
        found = []
        for length in sorted(self.settings.map_lengths):
            self._say(f"mapping against reading at {length} tokens")
            if (measured := mapping.at(length)) is not None:
                found.append(measured)
        self._show(mapping_table(found))
        return found

    def _note_short(self, samples: Sequence[Sample]) -> None:
        """Answers of unequal length have no equal times."""
        wanted = self.settings.new_tokens
        for arm in dict.fromkeys(sample.arm for sample in samples):
            counts = [each.timing.generated for each in samples if each.arm == arm]
            if min(counts) != wanted or max(counts) != wanted:
                self._note(
                    f"{arm} gave {min(counts)} to {max(counts)} tokens instead of {wanted} at "
                    f"{samples[0].length} prompt tokens; its total times do not compare"
                )

    def _note(self, sentence: str) -> None:
        self._notes.append(sentence)
        self._show(sentence)


def place(side: Side) -> str:
    """Where a model runs, and in which dtype."""
    return f"{side.spec.device} {str(side.dtype).removeprefix('torch.')}"


def fingerprint(drawn: Sequence[Sequence[Sequence[int]]]) -> str:
    """Twelve hex digits of the prompts of all lengths."""
    plain = [[list(prompt) for prompt in prompts] for prompts in drawn]
    return hashlib.sha256(repr(plain).encode()).hexdigest()[:12]
