"""Engines over the random pair, mappers of no use but for tests, and prompts of mixed length."""

import torch

from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair
from kvmap.runtime.engine import Engine
from kvmap.runtime.settings import Repair, Settings


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


class Fixed(Mapper):
    """A random linear map: useless, but the same every time."""

    def __init__(self, source: object, target: object) -> None:
        super().__init__(source, target)  # type: ignore[arg-type]
        draw = torch.Generator().manual_seed(5)
        size = (self.source_shape.head_dim, self.target_shape.head_dim)
        self.register_buffer("weight", torch.randn(size, generator=draw) / 4)

    def forward(self, source: KV) -> KV:
        layers = torch.arange(self.target_shape.layers) % self.source_shape.layers
        return KV(*(part[layers] @ self.weight for part in source))


def prompts(count: int, longest: int, vocabulary: int = 300, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to ``longest`` random tokens, every length spread evenly."""
    draw = torch.Generator().manual_seed(seed)
    lengths = [1 + index * (longest - 1) // max(count - 1, 1) for index in range(count)]
    return [torch.randint(1, vocabulary, (n,), generator=draw).tolist() for n in lengths]


def same_engine(pair: ModelPair, **settings: object) -> Engine:
    """The target mapped onto itself by the identity."""
    same = ModelPair("same", pair.target.spec, pair.target.spec)
    return Engine(same, Same(same.source.shape, same.target.shape), made(**settings))


def engine(pair: ModelPair, mapper: type[Mapper] = Fixed, **settings: object) -> Engine:
    """The pair with some mapper."""
    return Engine(pair, mapper(pair.source.shape, pair.target.shape), made(**settings))


def made(repair: int = 4, prefix: int = 0, **settings: object) -> Settings:
    """Settings with a short repair."""
    return Settings(repair=Repair(repair, prefix), **settings)  # type: ignore[arg-type]
