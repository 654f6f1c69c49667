"""Runs tasks on arms, block of passages by block, so that a block's KV is computed once."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch

from kvmap.evaluation.answering import Answering
from kvmap.evaluation.arms import Arm
from kvmap.evaluation.models import Models, NamedMapper
from kvmap.evaluation.passages import Passage, fingerprint
from kvmap.evaluation.progress import Progress
from kvmap.evaluation.prompts import Item, Prompt
from kvmap.evaluation.tasks.base import PassageItem, Task
from kvmap.evaluation.units import Unit, Units
from kvmap.pair import ModelPair

MapperSource = Callable[[str], NamedMapper]


@dataclass(frozen=True)
class Work:
    """One task for one arm.

    Attributes:
        task: What to ask.
        arm: Whom.
        passages: About how many passages, from the first.
    """

    task: Task
    arm: Arm
    passages: int


class Measurements:
    """What all arms answered, by task and arm."""

    def __init__(self) -> None:
        self._scores: dict[tuple[str, Arm], list[Any]] = {}

    def add(self, work: Work, scores: Sequence[Any]) -> None:
        """Append the scores of a block."""
        self._scores.setdefault((work.task.name, work.arm), []).extend(scores)

    def scores(self, task: str, arm: Arm) -> list[Any]:
        """One score a passage, in the passages' order; empty where the arm was not asked."""
        return self._scores.get((task, arm), [])


def measure(
    models: Models,
    passages: Sequence[Passage],
    works: Sequence[Work],
    mapper: MapperSource,
    units: Units,
    block: int = 8,
    progress: Progress | None = None,
) -> Measurements:
    """Do all the work that is not done yet.

    Args:
        models: The pair.
        passages: The items, all of one length.
        works: What to do.
        mapper: Gives the mapper of a key; called only when it is needed.
        units: Where finished work lies.
        block: Passages whose KV is in memory at once; at least 2, since ``mismatched`` takes its
            KV from the next passage of the block.
        progress: Told of every unit.
    """
    measurements = Measurements()
    # Arms of one mapper side by side: a prompt keeps the KV of one mapper at a time.
    ordered = sorted(works, key=lambda work: work.arm.mapper)
    for start, stop in blocks(len(passages), block):
        part = passages[start:stop]
        items: list[PassageItem] = []
        for work in ordered:
            count = max(0, min(work.passages - start, len(part)))
            if not count:
                continue
            unit = _unit(models, work, part, count, start)
            scores: list[Any] | None = units.load(unit, work.task.score)
            if scores is None:
                items = items or _items(models, part, [each.task for each in works])
                named = mapper(work.arm.mapper) if work.arm.mapper else None
                answering = Answering(models, work.arm, named)
                scores = [work.task.measure(answering, given) for given in items[:count]]
                units.store(unit, scores)
            measurements.add(work, scores)
            if progress is not None:
                progress.step(f"{work.task.name}: {work.arm.name}")
    return measurements


def steps(works: Sequence[Work], passages: int, block: int) -> int:
    """How many units :func:`measure` will go through."""
    return sum(1 for work in works for start, _ in blocks(passages, block) if work.passages > start)


def blocks(count: int, size: int) -> list[tuple[int, int]]:
    """Bounds of blocks of about one size, none with a single passage (given two or more)."""
    number = max(1, count // max(size, 2))
    bounds = [round(index * count / number) for index in range(number + 1)]
    return list(itertools.pairwise(bounds))


def decided_by(pair: ModelPair) -> dict[str, Any]:
    """What of models and software decides any number here."""
    return {
        "source": asdict(pair.source.identity()),
        "target": asdict(pair.target.identity()),
        "versions": [version(name) for name in ("kvmap", "torch", "transformers")],
    }


def _unit(models: Models, work: Work, part: Sequence[Passage], count: int, start: int) -> Unit:
    return Unit(
        f"{work.task.name} {work.arm.name} {start}",
        decided_by(models.pair)
        | {
            "task": [work.task.name, asdict(work.task)],  # type: ignore[call-overload]
            "arm": asdict(work.arm),
            "passages": fingerprint(part),
            "count": count,
        },
    )


def _items(models: Models, part: Sequence[Passage], tasks: Sequence[Task]) -> list[PassageItem]:
    """A block's passages, each beside the next one."""
    prompts = []
    for passage in part:
        scored = torch.cat([task.scored(passage) for task in tasks]).unique()
        prompts.append(Prompt(models, passage.ids, scored))
    others = [*prompts[1:], prompts[0]]
    pairs = zip(part, prompts, others, strict=True)
    return [PassageItem(passage, Item(prompt, other)) for passage, prompt, other in pairs]
