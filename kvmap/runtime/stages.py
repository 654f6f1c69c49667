"""Where the time of an answer goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stages:
    """Seconds by stage, in the order in which the stages first ran.

    On a GPU a stage is timed by events on the device's current stream, read when somebody asks:
    timing makes nothing wait, so stages that overlap add up to more than the whole.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def stage(self, name: str, device: torch.device) -> Iterator[None]:
        """Add the time of a ``with`` block to a stage that runs on a device."""
        self._seconds.setdefault(name, 0.0)
        if device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            stream = torch.cuda.current_stream(device)
            first.record(stream)
            yield
            last.record(torch.cuda.current_stream(device))
            self._pending.append((name, first, last))
        else:
            started = time.perf_counter()
            yield
            self.add(name, time.perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        """Add time that was measured elsewhere."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage; waits for work on a GPU that is still being timed."""
        for name, first, last in self._pending:
            last.synchronize()
            self.add(name, first.elapsed_time(last) / 1000)
        self._pending.clear()
        return dict(self._seconds)

    def table(self) -> str:
        """One line a stage, milliseconds and share of the sum."""
        seconds = self.seconds
        total = sum(seconds.values())
        lines = [
            f"{name:<16}{1000 * spent:>10.1f} ms{100 * spent / total if total else 0:>7.1f}%"
            for name, spent in [*seconds.items(), ("in all", total)]
        ]
        return "\n".join(lines)
