"""Good and mismatched caches, to find out what the guard makes of them."""

from collections.abc import Sequence

import torch

from kvmap.buffer import Buffer
from kvmap.runtime.engine import Engine
from kvmap.runtime.guard import difference
from kvmap.runtime.mapped import map_into


@torch.no_grad()
def guard_differences(
    engine: Engine, prompts: Sequence[Sequence[int]]
) -> tuple[list[float], list[float]]:
    """The guard's difference of every prompt, over its own mapped cache and over the next one's.

    Args:
        engine: With a mapper, both models on one device or two.
        prompts: Of one length, more than the repaired tokens; at least two.

    Returns:
        Nats/token: those over good caches, those over mismatched ones.
    """
    repair = max(engine.settings.repair.tokens, 2)
    heads = [_mapped(engine, prompt[:-repair]) for prompt in (*prompts, prompts[0])]
    good: list[float] = []
    mismatched: list[float] = []
    for number, prompt in enumerate(prompts):
        tail = torch.tensor(prompt[-repair:], device=engine.target.device)
        (source, own), (_, other) = heads[number], heads[number + 1]
        believed = engine.source.logits(tail, source, keep=repair)
        for buffer, found in ((own, good), (other, mismatched)):
            held = buffer.length
            seen = engine.target.logits(tail, buffer, keep=repair)
            buffer.keep(held)
            found.append(difference(seen, believed, tail))
    return good, mismatched


def _mapped(engine: Engine, head: Sequence[int]) -> tuple[Buffer, Buffer]:
    """The source's buffer and the target's mapped one after all but the repaired tokens."""
    assert engine.mapper is not None
    spare = max(engine.settings.repair.tokens, 2)
    source, target = (runner.buffer(len(head) + spare) for runner in (engine.source, engine.target))
    engine.source.read(torch.tensor(head, device=engine.source.device), source)
    rotated = source.slots(0, len(head)).to(engine.target.device)
    positions = engine.target.positions[: len(head)]
    out = target.slots(0, len(head))
    map_into(engine.source.side, engine.target.side, engine.mapper, rotated, positions, out)
    target.advance(len(head))
    return source, target
