"""The source's KV on its way to the target's device."""

from contextlib import nullcontext

import torch
from torch import Tensor

from kvmap.buffer import Buffer
from kvmap.errors import KVMapError
from kvmap.kv import KV, KVShape

TEST_BYTES = (1 << 10, 1 << 20, 1 << 25)


class Link:
    """Copies from the source's device to the target's, layer by layer while the source reads.

    On one device nothing is copied. Between two GPUs copies run on a stream of their own behind
    the layers that they carry. Direct copies are tried first; where they change what they carry
    (some machines' peer-to-peer access does, without a word), everything goes through pinned
    host memory.

    Args:
        source: Device A.
        target: Device B.
        force: Copy even where both are one device; for tests.

    Attributes:
        local: Whether there is nothing to copy.
        staged: Whether copies go through host memory.
    """

    def __init__(self, source: torch.device, target: torch.device, force: bool = False) -> None:
        self.source, self.target = source, target
        self.local = source == target and not force
        self.staged = False
        cuda = not self.local and "cuda" in (source.type, target.type)
        self._stream = (
            torch.cuda.Stream(target if target.type == "cuda" else source) if cuda else None
        )

    def self_test(self) -> None:
        """Compare copies with their originals, direct ones first, and choose the way that works.

        Raises:
            KVMapError: No way carries data faithfully.
        """
        if self.local:
            return
        for self.staged in (False, True):
            if all(self._faithful(size) for size in TEST_BYTES):
                return
        raise KVMapError(
            f"copies from {self.source} to {self.target} arrive changed, directly and through "
            "host memory; put both models on one device, or check driver and IOMMU"
        )

    def _faithful(self, size: int) -> bool:
        """Whether a pattern arrives, and arrives in time for the next use."""
        pattern = torch.arange(size // 4, dtype=torch.int32, device=self.source)
        pattern = (pattern * 2654435761).to(torch.int32)
        into = torch.zeros_like(pattern, device=self.target)
        self.send(pattern, into)
        self.receive()
        return torch.equal(into.cpu(), pattern.cpu())

    def send(self, tensor: Tensor, into: Tensor) -> None:
        """Copy behind what the source's device is doing now; :meth:`receive` before reading it."""
        if self._stream is None:
            into.copy_(tensor)
            return
        if self.source.type == "cuda":
            written = torch.cuda.Event()
            written.record(torch.cuda.current_stream(self.source))
            self._stream.wait_event(written)
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            if self.staged:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                into.copy_(host.copy_(tensor))
            else:
                into.copy_(tensor, non_blocking=True)

    def receive(self) -> None:
        """Let what the target's device does from now on come after all that was sent."""
        if self._stream is not None and self.target.type == "cuda":
            torch.cuda.current_stream(self.target).wait_stream(self._stream)
        elif self._stream is not None:
            self._stream.synchronize()

    def on_stream(self) -> "torch.cuda.StreamContext | nullcontext[None]":
        """The context in which copies run, for timing them."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


class Landing:
    """Memory on the target's device into which the source's KV of some tokens arrives.

    Args:
        link: How it comes.
        shape: The source's KV shape.
        tokens: Most tokens.
        dtype: The source's.
    """

    def __init__(self, link: Link, shape: KVShape, tokens: int, dtype: torch.dtype) -> None:
        size = (shape.layers, 1, shape.heads, 0 if link.local else tokens, shape.head_dim)
        self._link = link
        self._kv = KV(*(torch.empty(size, dtype=dtype, device=link.target) for _ in range(2)))

    def expect(self, source: Buffer) -> None:
        """Send every layer that the source's next forward writes."""
        if self._link.local:
            return

        def send(layer: int, tokens: slice) -> None:
            for mine, theirs in zip(self._kv, source.kv, strict=True):
                into = mine[layer, :, :, : tokens.stop - tokens.start]
                self._link.send(theirs[layer, :, :, tokens], into)

        source.call_when_written(send)

    def fetch(self, source: Buffer, start: int, stop: int) -> None:
        """Send tokens that the source holds already."""
        if not self._link.local:
            for mine, theirs in zip(self._kv, source.slots(start, stop), strict=True):
                self._link.send(theirs, mine[:, :, :, : stop - start])

    def receive(self, source: Buffer, start: int, stop: int) -> KV:
        """What was sent, the source's KV of some tokens, on the target's device."""
        source.call_when_written(None)
        if self._link.local:
            return source.slots(start, stop)
        self._link.receive()
        return self._kv.select_tokens(slice(0, stop - start))
