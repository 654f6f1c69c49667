"""How many tokens the draft proposes in a round."""

import math
from abc import ABC, abstractmethod

from kvmap.errors import KVMapError

LOOKS, LONGEST_WAIT = 4, 8  # rounds of a new look; the longest wait in first waits


class Schedule(ABC):
    """Chooses block sizes; what it learns in one request serves the next."""

    most: int  # largest block; caches have room for it

    @abstractmethod
    def next(self) -> int:
        """Tokens to propose in the next round, 0 for no draft."""

    def observe(self, proposed: int, accepted: int, draft: float, verify: float) -> None:  # noqa: B027
        """Hear how a round went; seconds of drafting and of verifying. Not all listen."""

    def restart(self) -> None:  # noqa: B027
        """Hear that another request begins."""


class Off(Schedule):
    """No draft: the target decodes token by token."""

    most = 0

    def next(self) -> int:
        """Nothing is proposed."""
        return 0


class Fixed(Schedule):
    """The same block size always.

    Args:
        size: Tokens a round, at least 1.
    """

    def __init__(self, size: int = 8) -> None:
        if size < 1:
            raise KVMapError(f"schedule.size={size} must be 1 or more; schedule=off for no draft")
        self.most = size

    def next(self) -> int:
        """The size."""
        return self.most


class Adaptive(Schedule):
    """The block size that promises most tokens per second.

    A block of b tokens costs ``b · d + v(b)``, with d the time of a draft step and v a straight
    line through what verifying took; with a share a of judged proposals accepted it gives
    ``(1 - a^(b+1)) / (1 - a)`` tokens. All are running means. It starts low, changes only for a
    gain beyond ``hysteresis``, and where even the best block loses against none, stops drafting;
    after ``patience`` rounds it looks again for a few, and each time waits twice as long, up to a
    bound.

    Args:
        least: Smallest block.
        most: Largest block.
        hysteresis: Gain, as a share, below which the size stays.
        patience: Rounds without a draft before the first new look.
        memory: Weight of what was known against one new round.
    """

    def __init__(
        self,
        least: int = 4,
        most: int = 24,
        hysteresis: float = 0.03,
        patience: int = 16,
        memory: float = 0.98,
    ) -> None:
        if not 1 <= least <= most:
            raise KVMapError(f"schedule.least={least} and most={most}: 1 <= least <= most")
        self.least, self.most = least, most
        self._hysteresis, self._patience, self._memory = hysteresis, patience, memory
        self._accepted, self._judged = 0.0, 0.0
        self._draft_seconds, self._draft_steps = 0.0, 0.0
        self._verify = _Line(memory)
        self.restart()

    def restart(self) -> None:
        """Start low again; what things cost and how well proposals did is kept."""
        self._size, self._idle, self._wait = self.least, 0, self._patience

    def next(self) -> int:
        """The size that promises most, unless the present one promises nearly as much."""
        if self._size:
            return self._size
        self._idle += 1
        if self._idle <= self._wait:
            return 0
        if self._idle == self._wait + LOOKS:
            self._idle, self._wait = 0, min(2 * self._wait, LONGEST_WAIT * self._patience)
        return self.least

    def observe(self, proposed: int, accepted: int, draft: float, verify: float) -> None:
        """Take a round into the means and choose the next size."""
        self._verify.add(proposed, verify)
        if proposed:
            keep = self._memory
            self._accepted = keep * self._accepted + accepted
            self._judged = keep * self._judged + min(accepted + 1, proposed)
            self._draft_seconds = keep * self._draft_seconds + draft
            self._draft_steps = keep * self._draft_steps + proposed
        if not self._draft_steps:
            return
        best = max((0, *range(self.least, self.most + 1)), key=self.rate)
        if self.rate(best) > (1 + self._hysteresis) * self.rate(self._size):
            self._size, self._idle = best, 0

    def rate(self, size: int) -> float:
        """Tokens per second that a block size promises."""
        share = min(self._share(), 0.999)
        tokens = (1 - share ** (size + 1)) / (1 - share)
        step = self._draft_seconds / self._draft_steps
        return tokens / max(size * step + self._verify.at(size), 1e-9)

    def _share(self) -> float:
        """The share a, as high as one standard error allows: doubt is worth another look."""
        if not self._judged:
            return 1.0
        mean = self._accepted / self._judged
        return mean + math.sqrt(mean * (1 - mean) / self._judged)


class _Line:
    """Seconds as a straight line in the number of tokens, least squares with forgetting."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._n = self._x = self._xx = self._y = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        keep = self._memory
        self._n = keep * self._n + 1
        self._x = keep * self._x + x
        self._xx = keep * self._xx + x * x
        self._y = keep * self._y + y
        self._xy = keep * self._xy + x * y

    def at(self, x: float) -> float:
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x**2
        # As if one round in twenty had shown that a token more costs a fiftieth: sizes that
        # never varied say nothing about the slope.
        slope = (self._xy / self._n - mean_x * mean_y + 0.05 * 0.02 * mean_y) / (spread + 0.05)
        return max(mean_y + max(slope, 0.0) * (x - mean_x), 1e-9)
