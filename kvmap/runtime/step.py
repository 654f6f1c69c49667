"""One token at a time without a processor in the way: decoding steps of fixed shape.

A step attends over all the memory of its buffer, under a mask that the device makes from a
position. So neither a shape nor an address depends on how much the buffer holds, and the step can
be captured as a CUDA graph, or compiled once for buffers of every size. The slots beyond the
position must hold finite numbers, which a buffer sees to.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvmap.buffer import Buffer, fixed_cache
from kvmap.runtime.attention import PART

Way = Literal["captured", "compiled", "eager"]
WAYS: dict[str, Way] = {"cuda": "captured"}  # elsewhere steps are compiled
ROOM = PART  # buffers for steps hold a multiple of so many tokens


class Step:
    """Reads one token into a buffer and gives the logits after it.

    Captured, the first step of a buffer runs as it is, which also warms up, the second is
    captured, and from then on a step copies a token and a position and replays. Graphs go with
    their buffers; all share one pool of memory, since one runs at a time.

    Args:
        model: In evaluation mode, on its device.
        by_kind: Whether it takes a mask for each kind of attention.
        way: How the step runs; None for graphs on a GPU, compiled elsewhere.

    Attributes:
        way: How it runs.
    """

    def __init__(self, model: PreTrainedModel, by_kind: bool, way: Way | None = None) -> None:
        self._model, self._by_kind, self._device = model, by_kind, model.device
        self.way: Way = way or WAYS.get(self._device.type, "compiled")
        self._token = torch.zeros(1, 1, dtype=torch.int64, device=self._device)
        self._position = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._forward: Any = _forward
        if self.way == "compiled":
            self._forward = torch.compile(_forward)
        if self.way == "captured":
            self._graphs: WeakKeyDictionary[Buffer, _Graph | None] = WeakKeyDictionary()
            self._stream = torch.cuda.Stream(self._device)
            self._pool = torch.cuda.graph_pool_handle()
            self._anchor = torch.cuda.CUDAGraph()  # a pool whose last graph went cannot be reused
            with torch.cuda.device(self._device), self._capture(self._anchor):
                self._position.zero_()

    def __call__(self, token: Tensor, buffer: Buffer) -> Tensor:
        """Append a token ``[1]`` to the buffer.

        Returns:
            ``[1, vocabulary of the model]``, float32, the caller's own.

        Raises:
            ValueError: The buffer is full.
        """
        buffer.slots(buffer.length, buffer.length + 1)  # there must be room
        self._token.copy_(token[None])
        self._position.fill_(buffer.length)
        if self.way == "captured":
            with torch.cuda.device(self._device):
                logits = self._replay(buffer)
        else:
            logits = self._run(buffer)
        buffer.advance(1)
        return logits.to(torch.float32, copy=True)

    def _run(self, buffer: Buffer) -> Tensor:
        if self.way == "compiled":  # one compilation for all capacities
            for part in buffer.kv:
                torch._dynamo.mark_dynamic(part, 3)
        logits: Tensor = self._forward(
            self._model, self._by_kind, self._token, self._position, *buffer.kv
        )
        return logits

    def _replay(self, buffer: Buffer) -> Tensor:
        if buffer not in self._graphs:
            self._graphs[buffer] = None
            with self._aside():
                return self._run(buffer)
        captured = self._graphs[buffer]
        if captured is None:
            graph = torch.cuda.CUDAGraph()
            with self._capture(graph):
                logits = self._run(buffer)
            self._graphs[buffer] = captured = _Graph(graph, logits)
        captured.graph.replay()
        return captured.logits

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On the stream for capturing, in order with the current one; no other work is there."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    @contextmanager
    def _capture(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """What ``torch.cuda.graph`` does, without emptying the allocator's cache each time."""
        torch.cuda.synchronize(self._device)
        with self._aside():
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()


@dataclass
class _Graph:
    """A captured step and where it leaves its logits; holds no reference to the buffer."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor


def _forward(
    model: PreTrainedModel,
    by_kind: bool,
    token: Tensor,
    position: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """The step itself.

    Args:
        model: The model.
        by_kind: Whether it takes a mask for each kind of attention.
        token: ``[1, 1]``.
        position: ``[1]``, where it stands and is written.
        keys: ``[L, 1, H, capacity, D]``, rotated.
        values: ``[L, 1, H, capacity, D]``.

    Returns:
        ``[1, vocabulary of the model]``.
    """
    slots = torch.arange(keys.shape[3], device=keys.device)
    mask = (slots <= position)[None, None, None]
    output: Any = model(
        input_ids=token,
        cache=fixed_cache(keys, values, position),
        position_ids=position[None],
        attention_mask={"full_attention": mask} if by_kind else mask,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: Tensor = output.logits[0]
    return logits
