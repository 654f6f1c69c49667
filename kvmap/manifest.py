"""``collection.json``: what a collection is, for people, and for reading it without models."""

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from kvmap.errors import KVMapError
from kvmap.pair import ModelPair
from kvmap.provenance import Provenance
from kvmap.recipe import Recipe
from kvmap.rope import Rotary

NAME = "collection.json"
Store = Literal["pairs", "moments"]


@dataclass(frozen=True)
class Manifest:
    """What stands in ``collection.json``.

    Attributes:
        pair: the pair's short name.
        direction: which of its models is the source.
        recipe: all that decides the numbers; its fingerprint is in the folder's name.
        source_config: the source's text configuration, from which its rotary is built.
        target_config: likewise the target's.
        query_heads: G of the target.
        attention_scaling: the target's factor on q·k inside the softmax.
        stored: what is complete: ``moments`` (and the development documents), ``pairs`` (the KV of
            every set as well), or None while it is being collected.
        provenance: versions, commit and time of the collection.
    """

    pair: str
    direction: str
    recipe: Recipe
    source_config: dict[str, Any]
    target_config: dict[str, Any]
    query_heads: int
    attention_scaling: float
    stored: Store | None = None
    provenance: Provenance = field(default_factory=Provenance)

    @classmethod
    def begin(cls, pair: ModelPair, recipe: Recipe) -> Self:
        """The manifest of a collection of which nothing is there yet."""
        return cls(
            pair=pair.name,
            direction=pair.direction,
            recipe=recipe,
            source_config=json.loads(pair.source.rotary.to_json()),
            target_config=json.loads(pair.target.rotary.to_json()),
            query_heads=pair.target.query_heads,
            attention_scaling=pair.target.attention_scaling,
        )

    def serves(self, store: Store) -> bool:
        """Whether all that ``store`` promises is complete."""
        return self.stored == "pairs" or self.stored == store

    def marked(self, stored: Store) -> Self:
        """The same, complete."""
        return replace(self, stored=stored)

    def rotary(self, side: Literal["source", "target"]) -> Rotary:
        """A side's rotary embedding, built without its model."""
        config = self.source_config if side == "source" else self.target_config
        return Rotary.from_json(json.dumps(config))

    def save(self, folder: Path) -> None:
        """Write the file whole."""
        values = {"fingerprint": self.recipe.fingerprint} | asdict(self)
        partial = folder / f"{NAME}.partial"
        partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, folder / NAME)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the file.

        Raises:
            KVMapError: it is missing or cannot be understood.
        """
        path = folder / NAME
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            fingerprint = values.pop("fingerprint")
            recipe = Recipe.from_dict(values.pop("recipe"))
            provenance = Provenance(**values.pop("provenance"))
            manifest = cls(recipe=recipe, provenance=provenance, **values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KVMapError(
                f"cannot read {path} ({error}); delete the file and run again: the shards are kept"
            ) from error
        if recipe.fingerprint != fingerprint:
            raise KVMapError(
                f"{path} was changed by hand: it says {fingerprint} and its recipe gives "
                f"{recipe.fingerprint}; delete the file and run again"
            )
        return manifest
