"""``kvmap-refine``: train an exported mapper further by what the target makes of its KV."""

from pathlib import Path

from omegaconf import DictConfig

from kvmap.cli.command import command
from kvmap.cli.relative import relative


@command("refine")
def main(config: DictConfig) -> float | None:
    """One run; returns the monitored metric, for sweepers."""
    from hydra.core.hydra_config import HydraConfig

    from kvmap.errors import KVMapError
    from kvmap.quiet import quiet
    from kvmap.refinement.refine import MONITOR, refine
    from kvmap.run import RunFolder

    quiet()
    if config.export is None:
        raise KVMapError("name what to refine: export=<export, run or hub id>")
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    print(f"run: {relative(folder)}", flush=True)
    with RunFolder(folder, config, list(hydra.overrides.task)) as run:
        metrics = run.metrics if run.finished else refine(config, run)
    print(f"export: {relative(folder / 'export')}")
    return metrics[MONITOR]


if __name__ == "__main__":
    main()
