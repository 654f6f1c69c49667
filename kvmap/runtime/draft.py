"""The source as a draft: it proposes what the target may say next."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvmap.buffer import Buffer
from kvmap.runtime.runner import Runner
from kvmap.runtime.sampling import Chooser


class Draft:
    """Proposes blocks. Its buffer always holds a prefix of the committed tokens between rounds.

    Args:
        runner: The source.
        buffer: Its KV.
        chooser: Chooses as the target will, with the same noise.
        confidence: A block ends after a token that the source gave less than this probability.
            The unsure token is still proposed: dropping a drawn token would bias sampling.
    """

    def __init__(
        self, runner: Runner, buffer: Buffer, chooser: Chooser, confidence: float = 0.0
    ) -> None:
        self._runner, self._buffer, self._chooser = runner, buffer, chooser
        self._confidence = confidence

    def propose(self, committed: Sequence[int], count: int) -> Tensor:
        """Up to ``count`` tokens after the committed ones, at least one.

        First the source reads what it has not read yet of the committed tokens.

        Returns:
            ``[n]`` on the source's device; no token comes to the host unless confidence is asked.
        """
        device, position = self._runner.device, len(committed)
        behind = torch.tensor(committed[self._buffer.length :], device=device)
        proposals: list[Tensor] = []
        while True:
            logits = self._runner.logits(behind, self._buffer, keep=1)
            if self._confidence > 0:
                behind, likely = self._chooser.choose_surely(logits, position)
            else:
                behind = self._chooser.choose(logits, position)
            proposals.append(behind)
            position += 1
            if len(proposals) == count:
                break
            if self._confidence > 0 and float(likely) < self._confidence:
                break
        return torch.cat(proposals)

    def forget_after(self, committed: int) -> None:
        """Roll back to at most so many tokens."""
        self._buffer.keep(min(self._buffer.length, committed))
