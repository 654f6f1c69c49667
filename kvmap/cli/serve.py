"""``kvmap-serve``: an HTTP server with the best mapper of a sweep, or one export; or one answer."""

from omegaconf import DictConfig

from kvmap.cli.command import command


@command("serve", verbatim=("prompt",))
def main(config: DictConfig) -> None:
    """Choose an export; with ``prompt=`` answer once and say where the time went, else serve."""
    from hydra.utils import instantiate

    from kvmap.arguments import require_switch
    from kvmap.quiet import quiet
    from kvmap.runtime.chosen import choose, load_engine, verify
    from kvmap.runtime.options import Options

    quiet()
    require_switch("allow_unverified", config.allow_unverified)
    if config.prompt is None:
        _serve(config)
        return
    options = Options(
        max_new_tokens=config.max_new_tokens, temperature=config.temperature, seed=config.seed
    )
    chosen = choose(config)
    print(chosen.why)
    verify(chosen, config.allow_unverified)
    engine = load_engine(chosen, instantiate(config.pair), config)
    stream = engine.stream(engine.encode(config.prompt), options)
    for piece in stream:
        print(piece.text, end="", flush=True)
    stats = stream.stats
    print(f"\n\n{stats.summary()}\n{stats.stages.table()}")


def _serve(config: DictConfig) -> None:
    """Serve over HTTP until told to end."""
    from hydra.utils import instantiate

    from kvmap.errors import KVMapError
    from kvmap.runtime.chosen import choose, load_engine, verify

    try:
        from kvmap.server.run import serve
    except ModuleNotFoundError as error:
        raise KVMapError(
            f"an HTTP server needs {error.name}, which is not installed; install kvmap[serve], "
            'or give prompt="…" to answer once'
        ) from None
    settings = instantiate(config.server)
    chosen = choose(config)
    print(chosen.why)
    evidence = verify(chosen, config.allow_unverified)
    serve(
        lambda: load_engine(chosen, instantiate(config.pair), config),
        settings,
        evidence,
    )
