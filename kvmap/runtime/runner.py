"""One loaded model that reads tokens into a buffer and gives logits."""

from typing import Any

import torch
from torch import Tensor

from kvmap.buffer import Buffer
from kvmap.pair import Side
from kvmap.runtime import attention
from kvmap.runtime.step import ROOM, Step


class Runner:
    """A model of the pair, on its device.

    Args:
        side: Which; its weights are loaded here.
        vocabulary: Ids that the tokenizer knows; logits of padding rows beyond them are cut off.
        compile: Whether tokens that come one at a time are read by a captured or compiled step.

    Attributes:
        step: That step, None without.
        positions: ``[max_position_embeddings]`` or more on the device, 0, 1, 2 …
    """

    def __init__(self, side: Side, vocabulary: int, compile: bool = False) -> None:
        self.side, self.vocabulary = side, vocabulary
        self.model = side.load()
        self.device = self.model.device
        self.decoder = self.model.get_decoder()
        attention.use(self.model)
        # Models with a kind of attention per layer take a mask per kind, others one mask.
        self._by_kind = bool(getattr(self.decoder.config, "layer_types", None))
        self.positions = torch.arange(side.config.max_position_embeddings, device=self.device)
        self.step = Step(self.model, self._by_kind) if compile else None

    def buffer(self, capacity: int) -> Buffer:
        """An empty buffer for this model's KV, with room for at least so many tokens."""
        if self.step is not None:
            capacity += -capacity % ROOM
        return Buffer(self.side.shape, capacity, self.model.dtype, self.device)

    def reach(self, positions: int) -> None:
        """Let it read so many positions, even beyond those that the model knows.

        What it says there means nothing; how fast it is does.
        """
        if positions > len(self.positions):
            self.positions = torch.arange(positions, device=self.device)

    def read(self, ids: Tensor, buffer: Buffer) -> None:
        """Append tokens ``[T]`` to the buffer, without computing logits."""
        self._forward(self.decoder, ids, buffer)

    def logits(self, ids: Tensor, buffer: Buffer, keep: int) -> Tensor:
        """Append tokens ``[T]`` and give the logits after the last ``keep`` of them.

        Returns:
            ``[keep, vocabulary]``, float32.
        """
        if self.step is not None and len(ids) == 1:
            return self.step(ids, buffer)[:, : self.vocabulary]
        output = self._forward(self.model, ids, buffer, logits_to_keep=keep)
        return output.logits[0, :, : self.vocabulary].float()

    def _forward(self, model: torch.nn.Module, ids: Tensor, buffer: Buffer, **others: int) -> Any:
        start, tokens = buffer.length, ids.shape[0]
        buffer.slots(start, start + tokens)  # there must be room
        # One token sees everything; a sequence from its start is causal; both need no mask.
        plain = tokens == 1 or start == 0
        mask = None if plain else attention.lower_right(tokens, start + tokens, self.device)
        output: Any = model(
            input_ids=ids[None].to(self.device),
            cache=buffer.cache,
            position_ids=self.positions[None, start : start + tokens],
            attention_mask={"full_attention": mask} if self._by_kind else mask,
            use_cache=True,
            **others,
        )
        buffer.advance(tokens)
        return output
