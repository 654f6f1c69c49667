"""The engine against the target's own greedy answers."""

import pytest
import torch

from kvmap.errors import KVMapError
from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair
from kvmap.runtime.engine import Engine

PROMPTS = ("a", "Anna lives in Oslo.", "The pet of Ben is a frog. " * 4)


class Same(Mapper):
    """The identity, for a model mapped onto itself."""

    def forward(self, source: KV) -> KV:
        return source


class Noise(Mapper):
    """Numbers that have nothing to do with the source."""

    def forward(self, source: KV) -> KV:
        layers, heads, dim = self.target_shape
        _, batch, _, tokens, _ = source.keys.shape
        return KV(*torch.randn(2, layers, batch, heads, tokens, dim).unbind())


def own_tokens(pair: ModelPair, prompt: str, count: int) -> list[int]:
    """The target's greedy tokens, every prefix read anew without a cache of ours."""
    model = pair.target.load()
    ids = pair.target.tokenizer(prompt, return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    for _ in range(count):
        logits = model(ids).logits[0, -1, : len(pair.target.tokenizer)]
        ids = torch.cat([ids, logits.argmax()[None, None]], 1)
    return ids[0, start:].tolist()


@pytest.fixture
def same_pair(random_pair: ModelPair) -> ModelPair:
    """A pair whose source is its target."""
    return ModelPair("same", random_pair.target.spec, random_pair.target.spec)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_repairing_the_whole_prompt_is_the_target_whatever_the_mapper(
    random_pair: ModelPair, prompt: str
) -> None:
    noise = Noise(random_pair.source.shape, random_pair.target.shape)
    answer = Engine(random_pair, noise, repair=10_000).generate(prompt, 8)
    assert answer.mapped_tokens == 0
    wanted = own_tokens(random_pair, prompt, 8)
    assert answer.tokens == wanted[: len(answer.tokens)]


@pytest.mark.parametrize("repair", [0, 1, 5])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_exact_kv_through_the_path_is_the_target(
    same_pair: ModelPair, prompt: str, repair: int
) -> None:
    engine = Engine(same_pair, Same(same_pair.source.shape, same_pair.target.shape), repair)
    answer = engine.generate(prompt, 8)
    assert answer.tokens == own_tokens(same_pair, prompt, 8)[: len(answer.tokens)]


def test_a_wrong_cache_changes_the_answer(same_pair: ModelPair) -> None:
    shape = same_pair.source.shape
    right, wrong = (
        Engine(same_pair, mapper, 1).generate(PROMPTS[2], 8).tokens
        for mapper in (Same(shape, shape), Noise(shape, shape))
    )
    assert right != wrong


def test_every_prompt_token_is_mapped_or_repaired(random_pair: ModelPair) -> None:
    mapper = Same(random_pair.source.shape, random_pair.source.shape)
    pair = ModelPair("same", random_pair.source.spec, random_pair.source.spec)
    answer = Engine(pair, mapper, 5).generate(PROMPTS[1], 3)
    tokens = len(pair.target.tokenizer(PROMPTS[1])["input_ids"])
    assert (answer.mapped_tokens, answer.repaired_tokens) == (tokens - 5, 5)
    assert len(answer.tokens) <= 3
    assert list(answer.stages.seconds)[-2:] == ["repair", "decode"]


@pytest.mark.parametrize(
    ("prompt", "count", "says"),
    [("", 4, "empty"), ("a", 0, "max_new_tokens=0"), ("a" * 20, 10**6, "exceed")],
)
def test_what_cannot_be_answered_is_told(
    random_pair: ModelPair, prompt: str, count: int, says: str
) -> None:
    engine = Engine(random_pair, Noise(random_pair.source.shape, random_pair.target.shape))
    with pytest.raises(KVMapError, match=says):
        engine.generate(prompt, count)


def test_a_negative_repair_is_refused(random_pair: ModelPair) -> None:
    mapper = Noise(random_pair.source.shape, random_pair.target.shape)
    with pytest.raises(KVMapError, match="repair=-1"):
        Engine(random_pair, mapper, -1)
