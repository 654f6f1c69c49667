"""Work that neither another process nor Ctrl-C may disturb."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock; wait, and say so, while another process has it.

    Args:
        path: the lock file, which stays.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting for another process that is collecting (lock {path})", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C to the end of the block, so that a shard and its moments stay together."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        pressed.append(number)

    usual = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if pressed:
        signal.raise_signal(signal.SIGINT)  # to whoever handles it otherwise
