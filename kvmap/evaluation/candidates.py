"""The exports that an evaluation chooses from."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from kvmap.errors import KVMapError
from kvmap.evaluation.models import NamedMapper
from kvmap.evaluation.result import MapperFacts
from kvmap.export import CONFIG, ExportConfig, find_export, load_mapper
from kvmap.families import family_class
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair

NEAREST = "depth_nearest"
"""The control that needs no calibration, and the key of its mapper."""


@dataclass(frozen=True)
class Export:
    """One exported mapper, read but not loaded.

    Attributes:
        named: How the user or the sweep named it.
        folder: Where it lies.
        config: What it says of itself.
    """

    named: str
    folder: Path
    config: ExportConfig

    @classmethod
    def find(cls, path_or_hub_id: str | Path) -> "Export":
        """An export by its folder, its run's folder, or a hub id.

        Raises:
            KVMapError: There is none, or it is damaged.
        """
        folder = find_export(path_or_hub_id)
        return cls(str(path_or_hub_id), folder, ExportConfig.read(folder))

    @property
    def key(self) -> str:
        """Changes with anything that decides what the mapper gives."""
        config = self.config
        what = [config.family, config.arguments, config.weights_sha256]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def facts(self) -> MapperFacts:
        """What stands in a result."""
        config = self.config
        return MapperFacts(
            export=self.named,
            family=config.family,
            arguments=config.arguments,
            weights_sha256=config.weights_sha256,
            collection=config.collection,
            metrics=config.metrics,
            refined=config.refined_from is not None,
        )


def exports_below(root: Path) -> list[Export]:
    """All exports in or below a folder, in the order of their paths.

    Raises:
        KVMapError: There is none.
    """
    folders = sorted(path.parent for path in root.rglob(CONFIG) if path.parent.name == "export")
    if not folders:
        raise KVMapError(f"no export in {root}; train one first: python train.py")
    return [Export.find(folder) for folder in folders]


class Mappers:
    """Gives mappers by key and keeps the last one loaded, so that a sweep fits into memory.

    Args:
        pair: What they have to fit.
        exports: Where they come from.

    Raises:
        KVMapError: On use, when an export does not fit the pair.
    """

    def __init__(self, pair: ModelPair, exports: list[Export]) -> None:
        self.pair = pair
        self._exports = {export.key: export for export in exports}
        self._last: NamedMapper | None = None
        self._nearest: NamedMapper | None = None

    def __call__(self, key: str) -> NamedMapper:
        """The mapper of a key."""
        if key == NEAREST:
            self._nearest = self._nearest or NamedMapper(key, nearest(self.pair))
            return self._nearest
        if self._last is None or self._last.key != key:
            self._last = NamedMapper(key, load_mapper(self._exports[key].folder, self.pair))
        return self._last

    @property
    def families(self) -> dict[str, str]:
        """Family by key."""
        known = {key: export.config.family for key, export in self._exports.items()}
        return known | {NEAREST: NEAREST}


def nearest(pair: ModelPair) -> Mapper:
    """The depth-nearest control of a pair.

    Raises:
        KVMapError: Its KV shapes differ too much for it.
    """
    return family_class(NEAREST)(pair.source.shape, pair.target.shape).eval()


def has_nearest(pair: ModelPair) -> bool:
    """Whether the pair's KV heads and head dims allow the depth-nearest control."""
    return pair.source.shape[1:] == pair.target.shape[1:]
