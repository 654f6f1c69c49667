"""Which export is served, and the engine that serves it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from kvmap.errors import KVMapError
from kvmap.evaluation.evidence import Evidence, read_evidence, require_evidence
from kvmap.export import find_export, load_mapper
from kvmap.leaderboard import Row, finished
from kvmap.pair import ModelPair
from kvmap.runtime.engine import Engine
from kvmap.runtime.guard import read_threshold
from kvmap.runtime.options import MODES
from kvmap.runtime.settings import Repair

MONITOR = "val/attention_cosine"
"""What exports are ranked by of which nobody knows better."""


@dataclass(frozen=True)
class Chosen:
    """An export and the reason for it.

    Attributes:
        folder: The export's folder; None where the engine answers natively.
        why: One sentence.
        repair: Which prompt tokens are repaired.
    """

    folder: Path | None
    why: str
    repair: Repair


def choose(config: DictConfig) -> Chosen:
    """The export that ``export=`` names, or the best of ``runs=``.

    Where some exports below ``runs=`` carry evidence that lets them be served, the best of those
    is taken, unless ``allow_unverified=true``: by the gap closed, since among good mappers no
    diagnostic foretells it, or by ``monitor=`` if that is given.

    Raises:
        KVMapError: None is there, two are named, or a number of repaired tokens is negative.
    """
    folder, why = _folder(config)
    return Chosen(folder, why, _repair(config, folder))


def verify(chosen: Chosen, allow_unverified: bool) -> Evidence | None:
    """The evidence of what is to be served; None for native answers, or where it is waived.

    Raises:
        KVMapError: The export may not be served: it carries no evidence, that of other weights,
            or evidence that speaks against it.
    """
    if chosen.folder is None:
        return None
    try:
        evidence = require_evidence(chosen.folder)
    except KVMapError as error:
        if allow_unverified:
            print(f"unverified: {error}")
            return None
        raise KVMapError(f"{error}, or serve it all the same with allow_unverified=true") from None
    print(evidence)
    evaluated = Repair(evidence.repair, evidence.prefix)
    if chosen.repair != evaluated:
        print(f"    but it speaks of {evaluated}, and this serves with {chosen.repair}")
    return evidence


def load_engine(chosen: Chosen, pair: ModelPair, config: DictConfig) -> Engine:
    """The engine that a ``serve`` or ``benchmark`` config describes.

    Raises:
        KVMapError: A model or the export cannot be loaded, or a setting is out of range.
    """
    mapper = None if chosen.folder is None else load_mapper(chosen.folder, pair)
    guard = read_threshold(config.guard, chosen.folder, chosen.repair.tokens)
    settings = replace(instantiate(config.runtime), repair=chosen.repair, guard=guard)
    engine = Engine(pair, mapper, settings)
    engine.self_test()
    return engine


def _folder(config: DictConfig) -> tuple[Path | None, str]:
    """The export's folder, and why it is this one."""
    if config.mode not in MODES:
        raise KVMapError(f"mode={config.mode} must be one of {', '.join(MODES)}")
    if config.mode != "mapped":
        return None, f"mode={config.mode}: no mapper is loaded"
    if config.export and config.checkpoint:
        raise KVMapError("export= and checkpoint= are one setting; give one of them")
    named = config.export or config.checkpoint
    if named:
        folder = find_export(named)
        return folder, f"serving {folder}: named on the command line"
    monitor = config.monitor or MONITOR
    ranked = finished(Path(config.runs), monitor, config.monitor_mode)
    known = {} if config.get("allow_unverified", False) else _evidence(ranked)
    eligible = [row for row in ranked if row.folder in known] or ranked
    gaps = {run: gap.value for run, each in known.items() if (gap := each.served.gap_closed)}
    if config.monitor is None and gaps and len(gaps) == len(known):
        run = max(gaps, key=lambda run: gaps[run])
        why = f"best by gap closed = {gaps[run]:.2f}"
    else:
        run, value = eligible[0].folder, eligible[0].metrics[monitor]
        why = f"best by {monitor} = {value:.4f}"
    if len(eligible) < len(ranked):
        why += f" of {len(eligible)} with evidence ({len(ranked) - len(eligible)} without)"
    folder = find_export(run)
    return folder, f"serving {folder}: {why}"


def _repair(config: DictConfig, folder: Path | None) -> Repair:
    """What is asked for; where nothing is, what the export was evaluated at, else the default."""
    default = Repair()
    with suppress(KVMapError):  # what cannot be read is told, or waived, by verify
        evidence = None if folder is None else read_evidence(folder)
        if evidence is not None:
            default = Repair(evidence.repair, evidence.prefix)
    asked = {name: config.repair[name] for name in ("tokens", "prefix")}
    return replace(default, **{name: given for name, given in asked.items() if given is not None})


def _evidence(ranked: Sequence[Row]) -> dict[Path, Evidence]:
    """The evidence of those runs whose exports may be served, by the runs' folders."""
    found = {}
    for row in ranked:
        with suppress(KVMapError):
            found[row.folder] = require_evidence(find_export(row.folder))
    return found
