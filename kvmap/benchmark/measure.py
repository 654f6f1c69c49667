"""All arms on all prompts, one prompt after the other, so that every ratio is paired."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvmap.benchmark.arms import Arm, Timing
from kvmap.evaluation.statistics import Estimate, bootstrap, share


@dataclass(frozen=True)
class Sample:
    """One arm on one prompt.

    Attributes:
        arm: Its name.
        length: Tokens of the prompt.
        prompt: Which prompt of this length.
        timing: What it took.
    """

    arm: str
    length: int
    prompt: int
    timing: Timing


def measure(
    arms: Sequence[Arm],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    say: Callable[[str], None],
    seed: int = 0,
) -> list[Sample]:
    """Let every arm answer every prompt, in another order for each.

    Args:
        arms: The ways of answering.
        prompts: All of one length; the first warms up, read backwards, so that nobody has seen a
            prompt's beginning before it is timed.
        new_tokens: Tokens to generate.
        say: Hears of every prompt done.
        seed: Of the orders.
    """
    dice, samples = random.Random(seed), []
    for arm in arms:
        arm.answer(prompts[0][::-1], min(new_tokens, 32))
    for number, prompt in enumerate(prompts):
        for arm in dice.sample(list(arms), len(arms)):
            timing = arm.answer(prompt, new_tokens)
            samples.append(Sample(arm.name, len(prompt), number, timing))
        say(f"{len(prompt)} tokens: prompt {number + 1} of {len(prompts)}")
    return samples


def paired_ratio(slower: Sequence[float], faster: Sequence[float]) -> Estimate:
    """Geometric mean over prompts of slower / faster, with a bootstrap interval over prompts."""
    logs = np.log(np.asarray(slower) / np.asarray(faster))
    found = bootstrap(np.stack([logs, np.ones_like(logs)], 1), lambda sums: np.exp(share(sums)))
    if found is None:
        raise ValueError("a time that was measured is above 0")
    return found
