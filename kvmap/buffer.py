"""KV of one sequence in memory allocated once, seen by transformers as a cache.

Beside :mod:`kvmap.cache` the only file that knows transformers' cache API. Appending writes in
place, forgetting moves a number: nothing is ever copied or concatenated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from kvmap.kv import KV, KVShape

Written = Callable[[int, slice], None]


class Buffer:
    """Rotated KV of one sequence, with room for ``capacity`` tokens.

    Args:
        shape: Layers, KV heads and head dim.
        capacity: Most tokens.
        dtype: Of the KV.
        device: Where it lives.

    Attributes:
        kv: All memory, ``[L, 1, H, capacity, D]`` each; beyond ``length`` without meaning.
        cache: What a transformers model takes; a forward writes behind ``length``, and
            :meth:`advance` then takes what it wrote as held.
    """

    def __init__(
        self, shape: KVShape, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        size = (shape.layers, 1, shape.heads, capacity, shape.head_dim)
        # Zeros: a step of fixed shape masks what has no meaning, and 0 * NaN would come through.
        self.kv = KV(*(torch.zeros(size, dtype=dtype, device=device) for _ in range(2)))
        self._held = _Held()  # shared with the layers, which must not keep the buffer alive
        layers = zip(self.kv.keys, self.kv.values, strict=True)
        self.cache = Cache(
            layers=[_Layer(self._held, index, *memory) for index, memory in enumerate(layers)]
        )

    @property
    def length(self) -> int:
        """Tokens held."""
        return self._held.tokens

    def call_when_written(self, written: Written | None) -> None:
        """Have ``written(layer, token slice)`` called when a forward has written a layer."""
        self._held.written = written

    @property
    def capacity(self) -> int:
        """Most tokens."""
        return self.kv.tokens

    @property
    def bytes(self) -> int:
        """Memory taken, whatever is held."""
        return sum(part.nbytes for part in self.kv)

    def slots(self, start: int, stop: int) -> KV:
        """Views of the memory of some tokens, to read or to fill.

        Raises:
            ValueError: When they lie outside the memory.
        """
        if not 0 <= start <= stop <= self.capacity:
            raise ValueError(f"slots {start} to {stop} of {self.capacity}")
        return self.kv.select_tokens(slice(start, stop))

    def advance(self, tokens: int) -> None:
        """Take the next ``tokens`` slots, filled just now, as held."""
        self.slots(self.length, self.length + tokens)
        self._held.tokens += tokens

    def keep(self, tokens: int) -> None:
        """Forget all but the first ``tokens`` tokens.

        Raises:
            ValueError: When it holds fewer.
        """
        if not 0 <= tokens <= self.length:
            raise ValueError(f"cannot keep {tokens} of {self.length} tokens")
        self._held.tokens = tokens

    def copy_from(self, other: "Buffer", tokens: int) -> None:
        """Hold the first tokens of another buffer."""
        for mine, theirs in zip(self.slots(0, tokens), other.slots(0, tokens), strict=True):
            mine.copy_(theirs)
        self._held.tokens = tokens


@dataclass
class _Held:
    """How much of a buffer has meaning, and who wants to hear of more."""

    tokens: int = 0
    written: Written | None = None


class _Layer(DynamicLayer):
    """One layer of a buffer, as transformers wants to see it."""

    def __init__(self, held: _Held, index: int, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self._held, self._index, self._keys, self._values = held, index, keys, values
        self.is_initialized = True
        self.device, self.dtype = keys.device, keys.dtype

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new tokens behind those held, and give all up to them."""
        start = self._held.tokens
        stop = start + key_states.shape[-2]
        self._keys[:, :, start:stop] = key_states
        self._values[:, :, start:stop] = value_states
        if self._held.written is not None:
            self._held.written(self._index, slice(start, stop))
        return self._keys[:, :, :stop], self._values[:, :, :stop]

    def get_seq_length(self) -> int:
        """Tokens held."""
        return self._held.tokens


def fixed_cache(keys: Tensor, values: Tensor, position: Tensor) -> Cache:
    """A buffer's memory for a forward of one token whose shapes do not depend on what is held.

    Args:
        keys: ``[L, 1, H, capacity, D]``, all of a buffer's.
        values: Likewise.
        position: ``[1]``, where the token is written; known to the device alone.
    """
    layers = range(len(keys))
    return Cache(layers=[_FixedLayer(index, keys, values, position) for index in layers])


class _FixedLayer(DynamicLayer):
    """One layer of a buffer for such a forward: it gives all slots, and a mask hides the rest."""

    def __init__(self, index: int, keys: Tensor, values: Tensor, position: Tensor) -> None:
        super().__init__()
        self._index, self._memory, self._position = index, (keys, values), position
        self.is_initialized = True
        self.device, self.dtype = keys.device, keys.dtype

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token at the position, and give all slots."""
        for memory, new in zip(self._memory, (key_states, value_states), strict=True):
            _write(memory, self._index, self._position, new)
        keys, values = self._memory
        return keys[self._index], values[self._index]

    def get_seq_length(self) -> int:
        """All slots: nothing here knows how many are held, and positions are passed."""
        return self._memory[0].shape[3]


# An operator of its own, because the compiler turns a write to a view into a copy of the whole.
@torch.library.custom_op("kvmap::write", mutates_args=("memory",))
def _write(memory: Tensor, layer: int, position: Tensor, new: Tensor) -> None:
    """Write ``new``, ``[1, H, 1, D]``, at a position of a layer of ``[L, 1, H, capacity, D]``."""
    memory[layer].index_copy_(2, position, new)
