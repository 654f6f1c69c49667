"""``kvmap-train``: collect KV pairs, fit one mapper, measure it, export it."""

from pathlib import Path

from omegaconf import DictConfig

from kvmap.cli.command import command
from kvmap.cli.relative import relative


@command("train")
def main(config: DictConfig) -> float | None:
    """One run; returns the monitored metric, for sweepers."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from kvmap.errors import KVMapError
    from kvmap.quiet import quiet
    from kvmap.run import RunFolder
    from kvmap.training import train

    quiet()
    hydra = HydraConfig.get()
    sweep = hydra.mode == RunMode.MULTIRUN
    strategy = str(config.trainer.get("strategy", "auto"))
    if sweep and strategy.startswith("ddp") and not strategy.startswith("ddp_spawn"):
        raise KVMapError(
            f"trainer.strategy={strategy} would start the whole sweep again in every rank; "
            "use trainer.strategy=ddp_spawn, or one run a command"
        )
    folder = Path(hydra.runtime.output_dir)
    print(f"run: {relative(folder)}", flush=True)
    with RunFolder(folder, config, list(hydra.overrides.task)) as run:
        metrics = run.metrics if run.finished else train(config, run)
    print(f"export: {relative(folder / 'export')}")
    return metrics[config.monitor]
