"""Which token follows: greedily, or drawn with noise keyed by seed and position."""

from collections.abc import Collection

import torch
from torch import Tensor

from kvmap.runtime.noise import gumbel
from kvmap.runtime.options import Options


class Chooser:
    """Chooses tokens for one request; the same logits at the same place give the same token.

    Args:
        options: Temperature, top-k, top-p, seed and the least length.
        ends: Tokens that would end the answer, not chosen before ``options.min_tokens``.
        prompt: Tokens of the prompt; the first generated token stands at that position.
    """

    def __init__(self, options: Options, ends: Collection[int], prompt: int) -> None:
        self._options, self._ends = options, sorted(ends)
        self._free = prompt + options.min_tokens  # from this position on the answer may end

    def choose(self, logits: Tensor, first: int) -> Tensor:
        """One token for each row.

        Args:
            logits: ``[T, V]`` float32, of neighbouring positions.
            first: Position of the token that the first row decides.

        Returns:
            ``[T]`` int64.
        """
        return self._draw(self._allowed(logits, first), first)

    def choose_surely(self, logits: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """:meth:`choose`, and how likely each chosen token was, ``[T]`` in 0 to 1."""
        allowed = self._allowed(logits, first)
        tokens = self._draw(allowed, first)
        temperature = self._options.temperature or 1.0
        likely = (allowed / temperature).softmax(-1).gather(1, tokens[:, None])
        return tokens, likely[:, 0]

    def _allowed(self, logits: Tensor, first: int) -> Tensor:
        """The logits with those tokens at minus infinity that must not be chosen."""
        bound = min(self._free - first, len(logits))
        if bound > 0 and self._ends:
            logits = logits.clone()
            logits[:bound, self._ends] = -torch.inf
        if self._options.temperature > 0:
            logits = _among_likeliest(logits, self._options)
        return logits

    def _draw(self, logits: Tensor, first: int) -> Tensor:
        if self._options.temperature == 0:
            return logits.argmax(-1)
        positions = torch.arange(first, first + len(logits), device=logits.device)
        noise = gumbel(self._options.seed, positions, logits.shape[1])
        return (logits.double() / self._options.temperature + noise).argmax(-1)


def _among_likeliest(logits: Tensor, options: Options) -> Tensor:
    """Keep the top-k tokens, and of them the fewest that together have probability top-p."""
    if 0 < options.top_k < logits.shape[1]:
        least = logits.topk(options.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if options.top_p < 1:
        ordered, order = logits.sort(-1, descending=True)
        chances = (ordered / options.temperature).softmax(-1)
        before = chances.cumsum(-1) - chances  # the likeliest token has nothing before it
        cut = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= options.top_p)
        logits = logits.masked_fill(cut, -torch.inf)
    return logits
