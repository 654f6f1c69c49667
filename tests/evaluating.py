"""What the tests of evaluation share: small mappers, prompts, passages and exports."""

from pathlib import Path

import torch
from collecting import write_corpus
from torch import Tensor

from kvmap.benchmark.settings import BenchmarkSettings
from kvmap.corpora.file import File
from kvmap.evaluation.models import Models, NamedMapper
from kvmap.evaluation.prompts import Item, Prompt
from kvmap.evaluation.settings import Search, Settings, Sizes
from kvmap.export import save_export
from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.mappers.depth_nearest import DepthNearest
from kvmap.mappers.ridge import Ridge
from kvmap.pair import ModelPair

SMALL = Sizes(
    prompt=24,
    continuation=8,
    passages=6,
    choice_tokens=6,
    lookups=0,
    other_lookups=0,
    lookup_distance=60,
    greedy=3,
    greedy_tokens=5,
    development=4,
    replacement=2,
    conversations=3,
    turns=4,
    turn_tokens=6,
    block=3,
)


def settings(**changes: object) -> Settings:
    """Settings of an evaluation that takes a second."""
    plain = {
        "sizes": SMALL,
        "search": Search([6], [0]),
        "speed": BenchmarkSettings(prompts=0),
        "curve": [0, 4, 6],
        "resamples": 200,
    }
    return Settings(**plain | changes)


class Same(Mapper):
    """The identity, for a model mapped onto itself."""

    def forward(self, source: KV) -> KV:
        return source


class Noise(Mapper):
    """Numbers that have nothing to do with the source, but the same for the same source."""

    def forward(self, source: KV) -> KV:
        layers, heads, dim = self.target_shape
        _, batch, _, tokens, _ = source.keys.shape
        draw = torch.Generator().manual_seed(tokens)
        size = (2, layers, batch, heads, tokens, dim)
        return KV(*torch.randn(size, generator=draw).unbind())


def named(mapper: Mapper) -> NamedMapper:
    return NamedMapper(type(mapper).__name__, mapper.eval())


def tokens(seed: int, count: int) -> Tensor:
    return torch.randint(1, 300, (count,), generator=torch.Generator().manual_seed(seed))


def item(models: Models, count: int = 30, scored: Tensor | None = None) -> Item:
    """A prompt of random tokens and another of equal length."""
    return Item(*(Prompt(models, tokens(seed, count), scored) for seed in (0, 1)))


def corpus(root: Path) -> File:
    return File(str(write_corpus(root / "corpus.txt")))


def export(pair: ModelPair, folder: Path, mapper: Mapper | None = None) -> Path:
    """An export of a mapper of the pair, depth-nearest by default."""
    save_export(
        mapper or DepthNearest(pair.source.shape, pair.target.shape),
        folder,
        pair=pair.name,
        direction=pair.direction,
        source=pair.source.identity(),
        target=pair.target.identity(),
        collection="none",
        metrics={"val/attention_cosine": 0.5, "fit_seconds": 1.0},
    )
    return folder


def random_ridge(pair: ModelPair, seed: int = 0) -> Ridge:
    """A ridge mapper whose weights mean nothing."""
    mapper = Ridge(pair.source.shape, pair.target.shape, k=1)
    draw = torch.Generator().manual_seed(seed)
    for name, value in mapper.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.randn(value.shape, generator=draw) / 10)
        elif "layers" in name:
            value.zero_()
    return mapper
