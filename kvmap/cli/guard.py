"""``kvmap-guard``: choose the guard's threshold for an export, and say what it catches."""

from omegaconf import DictConfig

from kvmap.cli.command import command


@command("guard")
def main(config: DictConfig) -> None:
    """Measure good and mismatched caches, choose on development, report on test, write it down."""
    from hydra.utils import instantiate

    from kvmap.errors import KVMapError
    from kvmap.quiet import quiet
    from kvmap.runtime.chosen import choose, load_engine
    from kvmap.runtime.guard import GuardCalibration, shares_above
    from kvmap.runtime.mismatch import guard_differences
    from kvmap.tiny.prompts import prompts

    quiet()
    chosen = choose(config)
    repair = chosen.repair.tokens
    if config.prompts < 2 or config.length <= max(repair, 2):
        raise KVMapError(
            f"prompts={config.prompts} of length={config.length} are too few or too short; "
            f"give at least 2 of more than {max(repair, 2)} tokens"
        )
    print(chosen.why)
    if chosen.folder is None:
        raise KVMapError(f"mode={config.mode} maps nothing to guard; leave mode=mapped")
    engine = load_engine(chosen, instantiate(config.pair), config)
    for split in ("development", "test"):
        given = prompts(engine.tokenizer, split, config.length, config.prompts)
        good, mismatched = guard_differences(engine, given)
        if split == "development":
            calibration = GuardCalibration.choose(good, mismatched, repair)
            calibration.save(chosen.folder)
        detected, false = shares_above(calibration.threshold, mismatched, good)
        print(
            f"{split}: {100 * detected:.1f}% of {len(mismatched)} mismatched caches caught, "
            f"{100 * false:.1f}% of {len(good)} good ones fall back"
        )
    print(f"threshold {calibration.threshold:.3f} nats/token, repair {repair}: {chosen.folder}")
