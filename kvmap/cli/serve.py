"""``kvmap-serve``: answer a prompt through the best mapper of a sweep, or through one export."""

from omegaconf import DictConfig

from kvmap.cli.command import command


@command("serve")
def main(config: DictConfig) -> None:
    """Choose an export, load the pair, answer once, and say where the time went."""
    from pathlib import Path

    from hydra.utils import instantiate

    from kvmap.errors import KVMapError
    from kvmap.export import load_mapper
    from kvmap.leaderboard import best
    from kvmap.quiet import quiet
    from kvmap.runtime.engine import Engine

    quiet()
    if not config.prompt:
        raise KVMapError('nothing to answer; give prompt="…"')
    export = config.export
    if export is None:
        row = best(Path(config.runs), config.monitor, config.monitor_mode)
        export = row.folder / "export"
        print(f"serving {export}: best by {config.monitor} = {row.metrics[config.monitor]:.4f}")
    pair = instantiate(config.pair)
    mapper = load_mapper(export, pair)
    answer = Engine(pair, mapper, config.repair).generate(config.prompt, config.max_new_tokens)
    print(f"{answer.text}\n")
    print(
        f"{answer.mapped_tokens} tokens mapped by {mapper.family}, {answer.repaired_tokens} "
        f"repaired, {len(answer.tokens)} generated ({answer.finish_reason})"
    )
    print(answer.stages.table())
