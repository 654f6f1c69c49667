"""The runtime's invariants on the devices at hand, in float32 on the embedded pair."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair, ModelSpec
from kvmap.runtime import engine as engine_module
from kvmap.runtime import step
from kvmap.runtime.draft import Draft
from kvmap.runtime.engine import Engine
from kvmap.runtime.options import Options
from kvmap.runtime.runner import Runner
from kvmap.runtime.schedule import Fixed, Off
from kvmap.runtime.settings import Repair, Settings
from kvmap.runtime.transfer import TEST_BYTES, Link

NEW = 16
GREEDY = Options(max_new_tokens=NEW, reuse=False, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.8, top_p=0.95, seed=11)


@dataclass(frozen=True)
class Check:
    """One invariant.

    Attributes:
        name: What must hold.
        passed: Whether it does.
        detail: What was seen.
    """

    name: str
    passed: bool
    detail: str


class Same(Mapper):
    """The identity, for a model mapped onto itself."""

    def forward(self, source: KV) -> KV:
        """The source's KV."""
        return source


class Anyhow(Mapper):
    """A random linear map: useless, but the same every time."""

    weight: Tensor

    def __init__(self, source: object, target: object) -> None:
        super().__init__(source, target)  # type: ignore[arg-type]
        size = (self.source_shape.head_dim, self.target_shape.head_dim)
        draw = torch.Generator().manual_seed(5)
        self.register_buffer("weight", torch.randn(size, generator=draw) / size[0] ** 0.5)

    def forward(self, source: KV) -> KV:
        """Source layer l mod L_s for target layer l, every head turned alike."""
        layers = torch.arange(self.target_shape.layers) % self.source_shape.layers
        return KV(*(part[layers.to(part.device)] @ self.weight for part in source))


class Checks:
    """All of them.

    Args:
        source: The source's device.
        target: The target's device.
        steps: How steps run on the CPU, where compiling would take its time.
    """

    def __init__(self, source: torch.device, target: torch.device, steps: step.Way) -> None:
        self._pair = ModelPair(
            "embedded",
            ModelSpec("embedded:source", dtype="float32", device=str(source)),
            ModelSpec("embedded:target", dtype="float32", device=str(target)),
        )
        self._devices, self._steps = (source, target), steps
        draw = torch.Generator().manual_seed(0)
        self._prompts = [
            torch.randint(1, 1000, (length,), generator=draw).tolist() for length in (1, 33, 300)
        ]

    def run(self) -> Iterator[Check]:
        """One after the other; one that raises has failed."""
        checks: tuple[tuple[str, Callable[[], tuple[bool, str]]], ...] = (
            ("copies between the devices are faithful, direct or staged", self.copies),
            ("repairing the whole prompt gives the target's own tokens", self.full_repair),
            ("the identity mapper gives the target's own tokens", self.identity),
            ("a lying draft changes nothing", self.lying_draft),
            ("reading and mapping in chunks changes nothing", self.chunks),
            ("copying the KV changes nothing, direct and staged", self.copied),
            ("steps of fixed shape give the logits and KV of forwards", self.step_logits),
            ("steps of fixed shape change no token", self.step_tokens),
        )
        torch.backends.cuda.matmul.allow_tf32 = False
        for name, check in checks:
            try:
                passed, detail = check()
            except Exception as error:  # the others are still worth knowing
                passed, detail = False, f"{type(error).__name__}: {error}".splitlines()[0]
            yield Check(name, passed, detail)

    def copies(self) -> tuple[bool, str]:
        """Patterns of three sizes arrive as they were."""
        link = Link(*self._devices, force=True)
        ways = {}
        for name, link.staged in (("direct", False), ("staged", True)):
            ways[name] = all(link._faithful(size) for size in TEST_BYTES)
        link.self_test()
        chosen = "staged" if link.staged else "direct"
        seen = ", ".join(f"{name} {'faithful' if good else 'WRONG'}" for name, good in ways.items())
        return ways[chosen], f"{seen}; {chosen} is used"

    def full_repair(self) -> tuple[bool, str]:
        """Whatever the mapper, with r = P."""
        return self._agree(self._own(), self._answers(self._engine(repair=10_000), GREEDY))

    def identity(self) -> tuple[bool, str]:
        """The target mapped onto itself."""
        target = self._pair.target
        here = replace(target.spec, device=str(self._devices[0]))
        same = ModelPair("same", here, target.spec)
        settings = Settings(repair=Repair(4), schedule=Fixed(4))
        engine = Engine(same, Same(target.shape, target.shape), settings)
        return self._agree(self._own(), self._answers(engine, GREEDY))

    def lying_draft(self) -> tuple[bool, str]:
        """One that proposes the wrong token at every place."""
        wanted = self._answers(self._engine(schedule=Off()), SAMPLED)
        honest = Draft.propose

        def lie(draft: Draft, committed: list[int], count: int) -> Tensor:
            return (honest(draft, committed, count) + 1) % 1000

        with patch.object(Draft, "propose", lie):
            found = self._answers(self._engine(schedule=Fixed(5)), SAMPLED)
        return self._agree(wanted, found)

    def chunks(self) -> tuple[bool, str]:
        """Of 7 and of 64 tokens."""
        wanted = self._answers(self._engine(), SAMPLED)
        found = [self._answers(self._engine(chunk=size), SAMPLED) for size in (7, 64)]
        return self._agree(wanted * 2, found[0] + found[1])

    def copied(self) -> tuple[bool, str]:
        """Even where both models are on one device."""
        wanted = self._answers(self._engine(), SAMPLED)
        found = []
        for staged in (False, True):

            def link(source: torch.device, target: torch.device, staged: bool = staged) -> Link:
                made = Link(source, target, force=True)
                made.staged = staged
                return made

            with patch.object(engine_module, "Link", link):
                found += self._answers(self._engine(chunk=32), SAMPLED)
        return self._agree(wanted * 2, found)

    @torch.no_grad()
    def step_logits(self) -> tuple[bool, str]:
        """Over rollbacks, on buffers of two sizes."""
        worst = 0.0
        for side in (self._pair.source, self._pair.target):
            with self._ways():
                runner = Runner(side, len(self._pair.target.tokenizer), compile=True)
            fixed, ids = runner.step, torch.tensor(self._prompts[-1], device=runner.device)
            for room in (310, 1000):
                plain, stepped = runner.buffer(room), runner.buffer(room)
                for buffer in (plain, stepped):
                    runner.read(ids[:200], buffer)
                for kept in (200, 150, 203, 3):
                    for at in range(kept, kept + 6):
                        logits = []
                        for buffer, runner.step in ((plain, None), (stepped, fixed)):
                            buffer.keep(at)
                            logits.append(runner.logits(ids[at - 1, None], buffer, keep=1))
                        worst = max(worst, _apart(*logits))
                    for buffer in (plain, stepped):
                        runner.read(ids[buffer.length : 210], buffer)
                held = zip(plain.slots(0, 210), stepped.slots(0, 210), strict=True)
                worst = max(worst, *(_apart(one, other) for one, other in held))
        return worst < 1e-3, f"furthest apart {worst:.1e}"

    def step_tokens(self) -> tuple[bool, str]:
        """Of answers with and without a draft, greedy and sampled."""
        wanted, found = [], []
        for schedule in (Off(), Fixed(4)):
            for options in (GREEDY, SAMPLED):
                wanted += self._answers(self._engine(schedule=schedule), options)
                found += self._answers(self._engine(schedule=schedule, compile=True), options)
        return self._agree(wanted, found)

    def _ways(self) -> AbstractContextManager[object]:
        return patch.dict(step.WAYS, {"cpu": self._steps})

    def _engine(self, repair: int = 4, **settings: object) -> Engine:
        mapper = Anyhow(self._pair.source.shape, self._pair.target.shape)
        made = Settings(repair=Repair(repair), **settings)  # type: ignore[arg-type]
        with self._ways():
            return Engine(self._pair, mapper, made)

    def _answers(self, engine: Engine, options: Options) -> list[tuple[int, ...]]:
        return [engine.generate(ids, options).tokens for ids in self._prompts]

    @torch.no_grad()
    def _own(self) -> list[tuple[int, ...]]:
        """The target's greedy tokens, every one from a forward of its own without a cache."""
        model: PreTrainedModel = self._pair.target.load()
        known, answers = len(self._pair.target.tokenizer), []
        for prompt in self._prompts:
            ids = list(prompt)
            for _ in range(NEW):
                logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits
                ids.append(int(logits[0, -1, :known].argmax()))
            answers.append(tuple(ids[len(prompt) :]))
        return answers

    @staticmethod
    def _agree(wanted: list[tuple[int, ...]], found: list[tuple[int, ...]]) -> tuple[bool, str]:
        same = sum(one == other for one, other in zip(wanted, found, strict=True))
        return same == len(wanted), f"{same} of {len(wanted)} answers equal"


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
