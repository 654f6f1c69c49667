"""The most memory that some work has in use at once, by device."""

import ctypes
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from kvmap.benchmark.result import PeakMemory

RESET, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
MIB = 2**20


class PeakMeter:
    """Runs work and tells its peak.

    Of a GPU it is what PyTorch had allocated; of the CPU the largest resident set of the whole
    process, which Linux counts. All weights that are loaded are in it, whoever they belong to.

    Args:
        devices: Where the work runs.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = list(dict.fromkeys(devices))

    def of(self, work: Callable[[], object]) -> list[PeakMemory]:
        """Do the work; devices whose peak cannot be told are missing."""
        gc.collect(1)  # caches of the last answers; a full collection takes longer than they did
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
        resident = any(device.type == "cpu" for device in self._devices) and _restart()
        work()
        peaks = []
        for device in self._devices:
            if device.type == "cuda":
                peaks.append(PeakMemory(str(device), torch.cuda.max_memory_allocated(device) / MIB))
            elif device.type == "cpu" and resident and (mib := _resident_peak()) is not None:
                peaks.append(PeakMemory(str(device), mib))
        return peaks


def _restart() -> bool:
    """Forget the resident set's peak, and give back what is free; whether the system can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        RESET.write_text("5")
    except OSError:
        return False
    return True


def _resident_peak() -> float | None:
    """MiB."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return None if found is None else int(found) / 1024
