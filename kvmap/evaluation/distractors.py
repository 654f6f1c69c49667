"""Wrong continuations that only the context rules out."""

import torch
from torch import Tensor

from kvmap.errors import KVMapError

SUFFIX = 12
"""Most tokens before a continuation that are compared."""


def distractors(
    table: Tensor, index: int, prompt: int, tokens: int, count: int = 3
) -> list[Tensor]:
    """Continuations of other passages that fit the end of this one's prompt.

    A continuation cut from anywhere would show at the seam: the grammar gives it away to a model
    that sees two words. So each other passage offers the place whose preceding tokens equal the end
    of the prompt for as long as possible, and the best fitting passages are taken (the first of
    equals after this one, so that no passage serves all).

    Args:
        table: ``[n, T]`` passages.
        index: Which passage.
        prompt: P, tokens of its prompt.
        tokens: Tokens of a continuation.
        count: How many.

    Returns:
        ``count`` continuations ``[tokens]``, from different passages, none equal to the right one.

    Raises:
        KVMapError: There are too few other passages, or they are too much alike.
    """
    passages, length = table.shape
    if passages <= count:
        raise KVMapError(f"{count} wrong continuations need more than {passages} passages")
    others = table.roll(-index - 1, dims=0)[:-1]
    places = torch.arange(SUFFIX, length - tokens + 1)
    fits = torch.zeros(len(others), len(places), dtype=torch.long)
    equal = torch.ones_like(fits, dtype=torch.bool)
    for back in range(1, min(SUFFIX, prompt) + 1):
        equal &= others[:, places - back] == table[index, prompt - back]
        fits += equal
    best, where = fits.max(dim=1)
    own = table[index, prompt : prompt + tokens]
    wrong: list[Tensor] = []
    for other in best.sort(descending=True, stable=True).indices.tolist():
        start = int(places[where[other]])
        candidate = others[other, start : start + tokens]
        if not any(torch.equal(candidate, taken) for taken in [own, *wrong]):
            wrong.append(candidate)
        if len(wrong) == count:
            return wrong
    raise KVMapError(
        f"{passages} passages of {length} tokens are so much alike that passage {index} has no "
        f"{count} different wrong continuations; use more passages, or text that repeats less"
    )
