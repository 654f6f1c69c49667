"""``kvmap-serve``: answer a prompt through the best mapper of a sweep, or through one export."""

from omegaconf import DictConfig

from kvmap.cli.command import command


@command("serve")
def main(config: DictConfig) -> None:
    """Choose an export, load the pair, answer once, and say where the time went."""
    from hydra.utils import instantiate

    from kvmap.errors import KVMapError
    from kvmap.quiet import quiet
    from kvmap.runtime.chosen import choose, load_engine
    from kvmap.runtime.options import Options

    quiet()
    if not config.prompt:
        raise KVMapError('nothing to answer; give prompt="…"')
    options = Options(
        max_new_tokens=config.max_new_tokens, temperature=config.temperature, seed=config.seed
    )
    chosen = choose(config)
    print(chosen.why)
    engine = load_engine(chosen, instantiate(config.pair), config)
    stream = engine.stream(engine.encode(config.prompt), options)
    for piece in stream:
        print(piece.text, end="", flush=True)
    stats = stream.stats
    print(f"\n\n{stats.summary()}\n{stats.stages.table()}")
