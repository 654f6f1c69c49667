"""Does a mapped cache remember? Four-way look-ups on the embedded pair's test documents.

Every arm answers the same questions, whose answers were bound at least 150 tokens before and are
not in the repaired tokens: the target with its own KV, the source alone, the target with mapped KV
and the last tokens repaired, and the target with the last tokens only (``window``).

    python benchmarks/lookups.py export=outputs/demo/1 questions=256 repair=32
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kvmap import cache as caches
from kvmap.export import load_mapper
from kvmap.pair import ModelPair, ModelSpec
from kvmap.runtime.mapped import map_rotated
from kvmap.tiny.card import FAR
from kvmap.tiny.english import English
from kvmap.tiny.lookup_tokens import LookupTokens, encode


@torch.no_grad()
def main(export: Path, questions: int, repair: int) -> None:
    side = {s: ModelSpec(f"embedded:{s}", dtype="float32") for s in ("source", "target")}
    pair = ModelPair("tiny", side["source"], side["target"])
    source, target, mapper = pair.source.load(), pair.target.load(), load_mapper(export, pair)

    def mapped(ids: Tensor) -> Tensor:
        start = ids.shape[1] - repair
        positions = torch.arange(start)
        rotated = caches.prefill(source, ids[:, :start])
        cache = caches.write(map_rotated(pair, mapper, rotated, positions))
        return caches.forward(
            target, ids[:, start:], cache, torch.arange(start, ids.shape[1]), logits_to_keep=1
        )

    def window(ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1] - repair, ids.shape[1])
        return caches.forward(target, ids[:, -repair:], caches.empty(), at, logits_to_keep=1)

    arms: dict[str, Callable[[Tensor], Tensor]] = {
        "target": lambda ids: target(ids, logits_to_keep=1).logits,
        "source": lambda ids: source(ids, logits_to_keep=1).logits,
        f"{mapper.family} + repair {repair}": mapped,
        f"window {repair}": window,
    }
    items = far_lookups(pair, questions)
    print(f"{len(items)} look-ups bound at least {FAR} tokens before; chance {len(items) // 4}")
    for name, answer in arms.items():
        right = sum(
            int(answer(ids[None, : item.position])[0, -1, list(item.choices)].argmax())
            == item.right
            for ids, item in items
        )
        error = (right * (len(items) - right) / len(items)) ** 0.5
        print(f"{name:<24}{right:>5} right, ± {1.96 * error:.0f}")


def far_lookups(pair: ModelPair, count: int) -> list[tuple[Tensor, LookupTokens]]:
    """The first so many far look-ups of the test documents, with their documents' ids."""
    english, index = English(words=900), 0
    items: list[tuple[Tensor, LookupTokens]] = []
    while len(items) < count:
        ids, lookups = encode(pair.target.tokenizer, english.document("test", index))  # type: ignore[arg-type]
        items += [(ids, each) for each in lookups if each.distance >= FAR]
        index += 1
    return items[:count]


if __name__ == "__main__":
    asked = {"export": "outputs/demo/1", "questions": "256", "repair": "32"}
    asked |= dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(Path(asked["export"]), int(asked["questions"]), int(asked["repair"]))
