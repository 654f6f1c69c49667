"""Where the time of an answer goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Stages:
    """Seconds by stage, in the order in which the stages first ran.

    Work on a GPU is waited for at the end of a stage, so that its time is its own.
    """

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, device: torch.device) -> Iterator[None]:
        """Add the time of a ``with`` block to a stage that runs on a device."""
        started = time.perf_counter()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def table(self) -> str:
        """One line a stage, milliseconds and share of the whole."""
        total = sum(self.seconds.values())
        lines = [
            f"{name:<16}{1000 * spent:>10.1f} ms{100 * spent / total:>7.1f}%"
            for name, spent in [*self.seconds.items(), ("in all", total)]
        ]
        return "\n".join(lines)
