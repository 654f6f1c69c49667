"""One training run from its config: fit, keep the best checkpoint, report, export."""

import gc
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig

from kvmap.compatibility import compare
from kvmap.data import KVPairDataModule
from kvmap.diagnostics import Diagnostics
from kvmap.errors import KVMapError
from kvmap.export import save_export
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair
from kvmap.report import Report
from kvmap.run import RunFolder


def train(config: DictConfig, run: RunFolder) -> dict[str, float]:
    """Train the mapper that a config describes and leave everything in the run's folder.

    An interrupted run goes on from its last epoch.

    Returns:
        What ``metrics.json`` holds.

    Raises:
        KVMapError: The pair, the data or the mapper's arguments do not fit.
    """
    require_monitor(config.monitor, config.monitor_mode)
    require_seed(config.seed)
    L.seed_everything(config.seed, workers=True, verbose=False)
    pair: ModelPair = instantiate(config.pair)
    mapper: Mapper = instantiate(
        config.mapper,
        source=list(pair.source.shape),
        target=list(pair.target.shape),
        _convert_="all",
    )
    compare(pair).require()
    data: KVPairDataModule = instantiate(config.data, pair=pair)
    data.prepare_data()
    folder = run.folder / "checkpoints"
    kept = Checkpoints(folder, "best", monitor=config.monitor, mode=config.monitor_mode)
    # A callback of its own: with save_last Lightning saves only the epochs that are best so far.
    last = Checkpoints(folder, "last")
    tracker = instantiate(config.logger)
    with tracker.track(run, mapper.family) as logger:
        trainer: L.Trainer = instantiate(
            config.trainer,
            max_epochs=mapper.epochs,
            logger=logger,
            callbacks=[kept, last, *instantiate(config.callbacks).values()],
            default_root_dir=run.folder,
        )
        fit(trainer, mapper, data, run)
        best = load_best(mapper, Path(kept.best_model_path))
        report = leave(best, run, pair, data)
        tracker.log(logger, report, run.folder / "export")
    del trainer, data
    gc.collect()
    return report.metrics


class Refined(NamedTuple):
    """What a refinement adds to a mapper's record.

    Attributes:
        start: Digest of the weights that it started from.
        loss: KL on the selection documents that its best epoch came to, nats/token.
    """

    start: str
    loss: float


def fit(
    trainer: L.Trainer, module: L.LightningModule, data: L.LightningDataModule, run: RunFolder
) -> None:
    """Train, from the run's last checkpoint if it has one.

    Raises:
        KeyboardInterrupt: The user interrupted it.
    """
    try:
        trainer.fit(module, data, ckpt_path=run.last_checkpoint, weights_only=True)
    except SystemExit:  # Lightning's way of ending a process that was interrupted
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise


def leave(
    mapper: Mapper,
    run: RunFolder,
    pair: ModelPair,
    data: KVPairDataModule,
    refinement: Refined | None = None,
) -> Report:
    """Leave a trained and measured mapper's export and report in its run's folder.

    Args:
        mapper: The best that the run had.
        run: Whose folder.
        pair: The models.
        data: The collection's data module.
        refinement: What it was refined from, and what it came to; None without one.
    """
    report = Report.of(mapper, data.calibration(), refinement and refinement.loss)
    save_export(
        mapper,
        run.folder / "export",
        pair=pair.name,
        direction=pair.direction,
        source=data.collection.source_identity,
        target=data.collection.target_identity,
        collection=data.collection.fingerprint,
        metrics=report.metrics,
        refined_from=refinement and refinement.start,
    )
    report.save(run.folder)
    return report


def require_seed(seed: object) -> None:
    """Refuse what random numbers cannot start from.

    Raises:
        KVMapError: Names the value.
    """
    if not isinstance(seed, int) or seed < 0:
        raise KVMapError(f"seed={seed} is no seed; use a whole number from 0")


class Checkpoints(ModelCheckpoint):
    """One file: the best epoch by a metric, or without one the last epoch.

    What it remembers names files without their folder, so that a moved run goes on where it lies.

    Args:
        folder: Where to.
        name: The file's name without its ending.
        options: More of :class:`ModelCheckpoint`'s.
    """

    _FILES = ("best_model_path", "kth_best_model_path", "last_model_path")

    def __init__(self, folder: Path, name: str, **options: Any) -> None:
        super().__init__(folder, filename=name, enable_version_counter=False, **options)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, without the folder."""
        state = super().state_dict()
        names = {key: Path(state[key]).name for key in self._FILES}
        best = {Path(path).name: score for path, score in state["best_k_models"].items()}
        return state | names | {"best_k_models": best, "dirpath": ""}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it for the folder of this run."""
        folder = Path(str(self.dirpath))
        names = {key: state_dict[key] and str(folder / state_dict[key]) for key in self._FILES}
        best = {str(folder / name): score for name, score in state_dict["best_k_models"].items()}
        here = {"best_k_models": best, "dirpath": self.dirpath}
        super().load_state_dict(state_dict | names | here)


def require_monitor(monitor: str, mode: str) -> None:
    """Refuse, before anything is learned, a metric or mode by which nothing can be chosen.

    Raises:
        KVMapError: The monitor is no diagnostic, or the mode neither ``max`` nor ``min``.
    """
    known = [f"val/{name}" for name in Diagnostics.names()]
    if monitor not in known:
        raise KVMapError(f"monitor={monitor} is not measured; use one of {', '.join(known)}")
    if mode not in ("max", "min"):
        raise KVMapError(f"monitor_mode={mode} is unknown; use max or min")


def load_best(mapper: Mapper, path: Path) -> Mapper:
    """The best checkpoint's mapper, with the diagnostics it was chosen for.

    Raises:
        KVMapError: No checkpoint was kept, so nothing was trained.
    """
    checkpoint = read_checkpoint(path)
    best = type(mapper)(**checkpoint["hyper_parameters"])
    best.load_state_dict(checkpoint["state_dict"])
    best.on_load_checkpoint(checkpoint)
    return best.eval()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The best checkpoint's content.

    Raises:
        KVMapError: No checkpoint was kept, so nothing was trained.
    """
    if not path.is_file():
        raise KVMapError(
            "no checkpoint was kept, so no mapper can be exported; the monitored metric was never "
            "measured: choose another monitor, or more development documents"
        )
    return torch.load(path, weights_only=True, map_location="cpu")
