"""One training run from its config: fit, keep the best checkpoint, report, export."""

import gc
from pathlib import Path

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig

from kvmap.compatibility import compare
from kvmap.data import KVPairDataModule
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
    checkpoints = ModelCheckpoint(
        run.folder / "checkpoints",
        filename="best",
        monitor=config.monitor,
        mode=config.monitor_mode,
        save_last=True,
        enable_version_counter=False,
    )
    tracker = instantiate(config.logger)
    with tracker.track(run, mapper.family) as logger:
        trainer: L.Trainer = instantiate(
            config.trainer,
            max_epochs=mapper.epochs,
            logger=logger,
            callbacks=[checkpoints, *instantiate(config.callbacks).values()],
            default_root_dir=run.folder,
        )
        trainer.fit(mapper, data, ckpt_path=run.last_checkpoint, weights_only=True)
        best = load_best(mapper, Path(checkpoints.best_model_path))
        report = Report.of(best, data.calibration())
        save_export(
            best,
            run.folder / "export",
            pair=pair.name,
            direction=pair.direction,
            source=data.collection.source_identity,
            target=data.collection.target_identity,
            collection=data.collection.fingerprint,
            metrics=report.metrics,
        )
        report.save(run.folder)
        tracker.log(logger, report, run.folder / "export")
    del trainer, data
    gc.collect()
    return report.metrics


def load_best(mapper: Mapper, path: Path) -> Mapper:
    """The best checkpoint's mapper, with the diagnostics it was chosen for.

    Raises:
        KVMapError: No checkpoint was kept, so nothing was trained.
    """
    if not path.is_file():
        raise KVMapError(
            "no checkpoint was kept, so no mapper can be exported; the monitored metric was never "
            "measured: choose another monitor, or more development documents"
        )
    checkpoint = torch.load(path, weights_only=True, map_location="cpu")
    best = type(mapper)(**checkpoint["hyper_parameters"])
    best.load_state_dict(checkpoint["state_dict"])
    best.on_load_checkpoint(checkpoint)
    return best.eval()
