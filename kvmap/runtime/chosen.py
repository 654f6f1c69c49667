"""Which export is served, and the engine that serves it."""

from dataclasses import dataclass
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from kvmap.errors import KVMapError
from kvmap.export import find_export, load_mapper
from kvmap.leaderboard import best
from kvmap.pair import ModelPair
from kvmap.runtime.engine import Engine
from kvmap.runtime.guard import read_threshold


@dataclass(frozen=True)
class Chosen:
    """An export and the reason for it.

    Attributes:
        folder: The export's folder; None where the engine answers natively.
        why: One sentence.
    """

    folder: Path | None
    why: str


def choose(config: DictConfig) -> Chosen:
    """The export that ``export=`` names, or the best of ``runs=`` by ``monitor=``.

    Raises:
        KVMapError: None is there, or two are named.
    """
    if config.mode != "mapped":
        return Chosen(None, f"mode={config.mode}: no mapper is loaded")
    if config.export and config.checkpoint:
        raise KVMapError("export= and checkpoint= are one setting; give one of them")
    named = config.export or config.checkpoint
    if named:
        folder = find_export(named)
        return Chosen(folder, f"serving {folder}: named on the command line")
    row = best(Path(config.runs), config.monitor, config.monitor_mode)
    folder = find_export(row.folder)
    score = row.metrics[config.monitor]
    return Chosen(folder, f"serving {folder}: best by {config.monitor} = {score:.4f}")


def load_engine(chosen: Chosen, pair: ModelPair, config: DictConfig) -> Engine:
    """The engine that a ``serve`` or ``benchmark`` config describes.

    Raises:
        KVMapError: A model or the export cannot be loaded, or a setting is out of range.
    """
    mapper = None if chosen.folder is None else load_mapper(chosen.folder, pair)
    settings = instantiate(config.runtime)
    guard = read_threshold(config.guard, chosen.folder, settings.repair.tokens)
    engine = Engine(pair, mapper, settings.with_guard(guard))
    engine.self_test()
    return engine
