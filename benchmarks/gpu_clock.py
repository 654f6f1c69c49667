"""Time and memory of work on one or two devices."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

GIB = 2**30


class Clock:
    """Times work that ends on a device.

    Args:
        device: Whose events count; a processor's own clock on the CPU.
        others: Devices that must be idle before.
    """

    def __init__(self, device: torch.device, *others: torch.device) -> None:
        self._device = device
        self._all = {each for each in (device, *others) if each.type == "cuda"}

    def seconds(self, work: Callable[[], object]) -> float:
        """From an idle machine to the end of the work."""
        for each in self._all:
            torch.cuda.synchronize(each)
        if self._device.type != "cuda":
            started = time.perf_counter()
            work()
            return time.perf_counter() - started
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(torch.cuda.current_stream(self._device))
        work()
        last.record(torch.cuda.current_stream(self._device))
        last.synchronize()
        return first.elapsed_time(last) / 1000

    def median(self, work: Callable[[], object], repeats: int, times: int = 1) -> float:
        """Seconds of the work, which does something so many times, after one run to warm up."""
        work()
        return median(self.seconds(work) for _ in range(repeats)) / times


class Memory:
    """What fits on the devices, and what was taken."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = [each for each in dict.fromkeys(devices) if each.type == "cuda"]

    def missing(self, needed: dict[torch.device, int]) -> str:
        """Which device is too small and by how much; empty where all fits."""
        for device in self._devices:
            free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
            free -= torch.cuda.memory_allocated(device) + GIB  # a little for kernels and graphs
            if needed.get(device, 0) > free:
                return (
                    f"needs {needed[device] / GIB:.1f} GiB of {device}, {free / GIB:.1f} are free"
                )
        return ""

    def restart(self) -> None:
        """Forget the peak."""
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)

    def peak(self) -> str:
        """The most that was allocated since, by device."""
        return "  ".join(
            f"{each} {torch.cuda.max_memory_allocated(each) / GIB:.1f}" for each in self._devices
        )
