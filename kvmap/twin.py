"""Both models of a pair, loaded, run over the same tokens."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvmap.cache import prefill
from kvmap.kv import KV, KVPair
from kvmap.pair import ModelPair, Side
from kvmap.queries import prefill_with_queries
from kvmap.shards import Shard
from kvmap.shift import require_strippable


class Twin:
    """Loads both models, each on its own device, and sees that their rotation comes off.

    Args:
        pair: the models.
        batch_size: documents that a model runs at once.

    Raises:
        KVMapError: a model's keys depend on positions in a way that no rotary embedding explains.
    """

    def __init__(self, pair: ModelPair, batch_size: int) -> None:
        self.pair, self.batch_size = pair, batch_size
        self.source, self.target = pair.source.load(), pair.target.load()
        for model, side in ((self.source, pair.source), (self.target, pair.target)):
            require_strippable(model, side.rotary)

    @torch.no_grad()
    def run(self, ids: Tensor, positions: Tensor, query_positions: Tensor | None) -> Shard:
        """The content KV of some documents, paired token by token, in float32 on the CPU.

        Args:
            ids: ``[B, length]`` tokens.
            positions: ``[T]`` positions of the tokens to keep.
            query_positions: ``[Q]`` positions at which the target's queries are kept, or None.
        """
        sources, targets, queries = [], [], []
        for batch in ids.split(self.batch_size):
            kv = prefill(self.source, batch.to(self.source.device))
            sources.append(_content(self.pair.source, kv, positions))
            if query_positions is None:
                kv = prefill(self.target, batch.to(self.target.device))
            else:
                kv, asked = _with_queries(self.target, batch, query_positions)
                queries.append(asked.float().cpu())
            targets.append(_content(self.pair.target, kv, positions))
        pair = KVPair(_joined(sources), _joined(targets))
        return Shard(pair, torch.cat(queries, dim=1) if queries else None)


def _with_queries(model: PreTrainedModel, ids: Tensor, at: Tensor) -> tuple[KV, Tensor]:
    return prefill_with_queries(model, ids.to(model.device), at.to(model.device))


def _content(side: Side, rotated: KV, positions: Tensor) -> KV:
    """Keep some tokens, take the rotation off in float32, and move to the CPU."""
    kept = rotated.select_tokens(positions.to(rotated.keys.device)).to(torch.float32)
    keys = side.rotary.strip(kept.keys, positions.to(kept.keys.device))
    return KV(keys.cpu(), kept.values.cpu())


def _joined(parts: list[KV]) -> KV:
    """Documents of several batches, side by side."""
    keys, values = (torch.cat(each, dim=1) for each in zip(*parts, strict=True))
    return KV(keys, values)
