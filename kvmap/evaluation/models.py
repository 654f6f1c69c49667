"""Both models of a pair, loaded, and the mappers that stand between them."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvmap.evaluation.arms import Answerer
from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair
from kvmap.runtime.mapped import map_rotated


@dataclass(frozen=True)
class NamedMapper:
    """A mapper and what tells it from all others.

    Attributes:
        key: Changes whenever what the mapper gives might change.
        mapper: In evaluation mode.
    """

    key: str
    mapper: Mapper


class Models:
    """A pair's models on their devices.

    Args:
        pair: The models to load.

    Raises:
        KVMapError: One of them cannot be had.
    """

    def __init__(self, pair: ModelPair) -> None:
        self.pair = pair
        self.source, self.target = pair.source.load(), pair.target.load()
        self.vocabulary = len(pair.target.tokenizer)

    def of(self, answerer: Answerer) -> PreTrainedModel:
        """The model that answers."""
        return self.source if answerer == "source" else self.target

    @torch.no_grad()
    def map(self, mapper: Mapper, source: KV) -> KV:
        """The target's rotated KV from the source's, for the tokens from position 0 on."""
        device = self.target.device
        positions: Tensor = torch.arange(source.tokens, device=device)
        return map_rotated(self.pair, mapper.to(device), source.to(device), positions)
