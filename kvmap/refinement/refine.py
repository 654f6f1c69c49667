"""One refinement from its config: train an exported mapper further, keep the best, export."""

import gc
from pathlib import Path

import lightning as L
from hydra.utils import instantiate
from omegaconf import DictConfig

from kvmap.compatibility import compare
from kvmap.data import KVPairDataModule
from kvmap.errors import KVMapError
from kvmap.export import ExportConfig, find_export, load_mapper
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair
from kvmap.refinement.data import RefinementData
from kvmap.refinement.module import Refinement
from kvmap.refinement.settings import RefinementSettings
from kvmap.run import RunFolder
from kvmap.training import Checkpoints, Refined, fit, leave, read_checkpoint, require_seed

MONITOR = "selection/loss"


def refine(config: DictConfig, run: RunFolder) -> dict[str, float]:
    """Refine the export that a config names and leave everything in the run's folder.

    An interrupted refinement goes on from its last epoch.

    Returns:
        What ``metrics.json`` holds.

    Raises:
        KVMapError: The export, the pair, the data or a setting does not fit.
    """
    require_seed(config.seed)
    L.seed_everything(config.seed, workers=True, verbose=False)
    settings: RefinementSettings = instantiate(config.refinement)
    pair: ModelPair = instantiate(config.pair)
    start = ExportConfig.read(find_export(config.export))
    if start.direction != pair.direction:
        raise KVMapError(
            f"export={config.export} maps {start.direction}; give pair.direction={start.direction}"
        )
    mapper = load_mapper(config.export, pair)
    mapper.fit_seconds = start.metrics.get("fit_seconds") or 0.0
    refinement = Refinement(mapper, pair, settings)
    compare(pair).require()
    pairs: KVPairDataModule = instantiate(config.data, pair=pair)
    data = RefinementData(pairs, settings)
    data.prepare_data()
    folder = run.folder / "checkpoints"
    kept = Checkpoints(folder, "best", monitor=MONITOR, mode="min")
    last = Checkpoints(folder, "last")
    tracker = instantiate(config.logger)
    with tracker.track(run, f"{mapper.family}-refined") as logger:
        trainer: L.Trainer = instantiate(
            config.trainer,
            max_epochs=settings.epochs,
            logger=logger,
            callbacks=[kept, last, *instantiate(config.callbacks).values()],
            default_root_dir=run.folder,
        )
        fit(trainer, refinement, data, run)
        best = load_best(refinement, Path(kept.best_model_path))
        assert kept.best_model_score is not None  # a best checkpoint has been read
        reached = Refined(start.weights_sha256, kept.best_model_score.item())
        report = leave(best, run, pair, pairs, reached)
        tracker.log(logger, report, run.folder / "export")
    del trainer, data, refinement
    gc.collect()
    return report.metrics


def load_best(refinement: Refinement, path: Path) -> Mapper:
    """The best checkpoint's mapper, with the diagnostics that were measured beside it.

    Raises:
        KVMapError: No checkpoint was kept, so nothing was trained.
    """
    checkpoint = read_checkpoint(path)
    refinement.load_state_dict(checkpoint["state_dict"])
    refinement.on_load_checkpoint(checkpoint)
    best = refinement.mapper.cpu().eval().requires_grad_(False)
    best.diagnostics, best.fit_seconds = refinement.diagnostics, refinement.fit_seconds
    return best
