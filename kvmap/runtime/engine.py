"""The engine: source prefill, mapping, repair by the target, then greedy decoding."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache

from kvmap import cache as caches
from kvmap.errors import KVMapError
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair
from kvmap.runtime.mapped import map_rotated
from kvmap.runtime.stages import Stages


@dataclass(frozen=True)
class Generation:
    """One answer.

    Attributes:
        tokens: Generated token ids, an end token included.
        text: Their text, without special tokens.
        finish_reason: ``stop`` at the model's end token, else ``length``.
        mapped_tokens: Prompt tokens whose KV the mapper gave.
        repaired_tokens: Prompt tokens that the target computed itself.
        stages: Seconds by stage.
    """

    tokens: list[int]
    text: str
    finish_reason: str
    mapped_tokens: int
    repaired_tokens: int
    stages: Stages


class Engine:
    """Answers prompts with the target, whose cache comes from the source through a mapper.

    Args:
        pair: The models; both are loaded, each on its device.
        mapper: A fitted mapper of this pair.
        repair: Prompt tokens at the end that the target computes itself; at least the last one
            always is, since without it there are no first logits.

    Raises:
        KVMapError: A model cannot be loaded, or ``repair`` is negative.
    """

    def __init__(self, pair: ModelPair, mapper: Mapper, repair: int = 32) -> None:
        if repair < 0:
            raise KVMapError(f"repair={repair} must not be negative; use 0 or more tokens")
        self.pair, self.repair = pair, repair
        self.source, self.target = pair.source.load(), pair.target.load()
        self.mapper = mapper.to(self.target.device)
        end = self.target.generation_config.eos_token_id
        self._end = set(end) if isinstance(end, list) else {end}

    @torch.no_grad()
    def generate(self, prompt: str, max_new_tokens: int = 64) -> Generation:
        """Answer one prompt.

        Args:
            prompt: Text.
            max_new_tokens: Most tokens to generate, at least 1.

        Raises:
            KVMapError: The prompt is empty or too long for the models, or nothing may be
                generated.
        """
        stages = Stages()
        with stages.stage("tokenise", torch.device("cpu")):
            ids = self.pair.target.tokenizer(prompt, return_tensors="pt")["input_ids"]
        self._require(ids.shape[1], max_new_tokens)
        repaired = min(max(self.repair, 1), ids.shape[1])
        mapped = ids.shape[1] - repaired
        cache = self._mapped_cache(ids[:, :mapped], stages) if mapped else caches.empty()
        with stages.stage("repair", self.target.device):
            token = self._next(ids[:, mapped:], cache)
        tokens = [token]
        with stages.stage("decode", self.target.device):
            while len(tokens) < max_new_tokens and tokens[-1] not in self._end:
                tokens.append(self._next(torch.tensor([tokens[-1:]]), cache))
        return Generation(
            tokens,
            str(self.pair.target.tokenizer.decode(tokens, skip_special_tokens=True)),
            "stop" if tokens[-1] in self._end else "length",
            mapped,
            repaired,
            stages,
        )

    def _mapped_cache(self, ids: Tensor, stages: Stages) -> Cache:
        """The target's cache for some prompt tokens, from the source's."""
        positions = torch.arange(ids.shape[1])
        with stages.stage("source prefill", self.source.device):
            rotated = caches.prefill(self.source, ids.to(self.source.device))
        with stages.stage("transfer", self.target.device):
            rotated = rotated.to(self.target.device)
            positions = positions.to(self.target.device)
        with stages.stage("map", self.target.device):
            return caches.write(map_rotated(self.pair, self.mapper, rotated, positions))

    def _next(self, ids: Tensor, cache: Cache) -> int:
        """Append tokens to the cache and return the most likely next one."""
        start = caches.length(cache)
        device = self.target.device
        positions = torch.arange(start, start + ids.shape[1], device=device)
        logits = caches.forward(self.target, ids.to(device), cache, positions, logits_to_keep=1)
        return int(logits[0, -1, : len(self.pair.target.tokenizer)].argmax())

    def _require(self, prompt_tokens: int, max_new_tokens: int) -> None:
        if max_new_tokens < 1:
            raise KVMapError(f"max_new_tokens={max_new_tokens} must be at least 1")
        if not prompt_tokens:
            raise KVMapError("the prompt is empty; give at least one token")
        sides = (self.pair.source, self.pair.target)
        limit = min(side.config.max_position_embeddings for side in sides)
        if prompt_tokens + max_new_tokens > limit:
            raise KVMapError(
                f"a prompt of {prompt_tokens} tokens and {max_new_tokens} new ones exceed the "
                f"{limit} positions of the models; shorten the prompt or lower max_new_tokens"
            )
