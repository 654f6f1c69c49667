"""The target judges a block in one forward."""

from typing import NamedTuple

import torch
from torch import Tensor

from kvmap.buffer import Buffer
from kvmap.runtime.answer import TokenLogprob
from kvmap.runtime.runner import Runner
from kvmap.runtime.sampling import Chooser


class Verdict(NamedTuple):
    """What the target says to a block.

    Attributes:
        tokens: The accepted proposals and one token of the target's own: a correction, or the
            bonus after a block that agreed as a whole.
        accepted: How many of them the draft had proposed.
        logits: The target's, one row for each of the tokens, ``[n, V]``.
    """

    tokens: list[int]
    accepted: int
    logits: Tensor


class Verifier:
    """The model whose tokens are the answer.

    Args:
        runner: The target; the source where it answers alone.
        buffer: Its KV, holding the committed tokens less one.
        chooser: Chooses its tokens.
    """

    def __init__(self, runner: Runner, buffer: Buffer, chooser: Chooser) -> None:
        self._runner, self._buffer, self._chooser = runner, buffer, chooser

    @property
    def device(self) -> torch.device:
        """Where it judges."""
        return self._runner.device

    def verify(self, last: int, proposals: Tensor | None) -> Verdict:
        """Read the last committed token and the proposals, and choose a token after each.

        Args:
            last: The committed token that the buffer does not hold yet.
            proposals: ``[n]``, or None for a round without a draft.
        """
        block = torch.tensor([last], device=self.device)
        if proposals is not None:
            block = torch.cat([block, proposals.to(self.device)])
        first = self._buffer.length + 1
        logits = self._runner.logits(block, self._buffer, keep=len(block))
        own = self._chooser.choose(logits, first)
        # One way to the host for what was chosen and what was proposed.
        *chosen, after = torch.cat([block[1:], own]).tolist()
        proposed, chosen = chosen[: len(block) - 1], chosen[len(block) - 1 :]
        accepted = 0
        while accepted < len(proposed) and chosen[accepted] == proposed[accepted]:
            accepted += 1
        tokens = [*chosen, after][: accepted + 1]
        return Verdict(tokens, accepted, logits[: accepted + 1])

    def forget_after(self, committed: int) -> None:
        """Roll back to so many tokens."""
        self._buffer.keep(min(self._buffer.length, committed))


def log_probabilities(
    logits: Tensor, tokens: list[int], top: int | None
) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of tokens under the logits ``[n, V]`` that decided them.

    Args:
        logits: Before temperature and top-p.
        tokens: As many as rows, or fewer.
        top: How many of the likeliest to report beside each; None for no report at all.
    """
    if top is None:
        return ()
    scores = logits[: len(tokens)].log_softmax(-1)
    own = scores.gather(1, torch.tensor(tokens, device=scores.device)[:, None])[:, 0].tolist()
    best = scores.topk(top, -1) if top else None
    tops = (
        [()] * len(tokens)
        if best is None
        else [
            tuple(zip(ids, values, strict=True))
            for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    )
    return tuple(
        TokenLogprob(token, score, likeliest)
        for token, score, likeliest in zip(tokens, own, tops, strict=True)
    )
