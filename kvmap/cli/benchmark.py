"""``kvmap-benchmark``: how fast every way of answering is, on the same prompts in one run."""

from pathlib import Path

from omegaconf import DictConfig

from kvmap.cli.beside import beside
from kvmap.cli.command import command
from kvmap.cli.plain import plain

SAMPLES = "samples.json"


@command("benchmark")
def main(config: DictConfig) -> None:
    """Choose an export, time everything, print tables, keep the result and every sample."""
    import sys
    from dataclasses import asdict, fields
    from functools import partial

    import torch
    from hydra.utils import instantiate

    from kvmap.arguments import require_whole
    from kvmap.benchmark.benchmark import Benchmark
    from kvmap.benchmark.external import External
    from kvmap.benchmark.report import sample_values
    from kvmap.benchmark.settings import BenchmarkSettings
    from kvmap.evaluation.candidates import Export
    from kvmap.jsonfile import write_json
    from kvmap.quiet import quiet
    from kvmap.runtime.chosen import choose, load_engine
    from kvmap.tiny.prompts import Drawn

    quiet()
    if config.threads is not None:
        require_whole("threads", config.threads, 1)
        torch.set_num_threads(config.threads)
    asked = plain(config)
    settings = BenchmarkSettings(
        **{each.name: asked[each.name] for each in fields(BenchmarkSettings)}
    )
    external = External(**config.external) if config.external.url is not None else None
    chosen, pair = choose(config), instantiate(config.pair)
    print(chosen.why)
    engine = load_engine(chosen, pair, config)
    benchmark = Benchmark(
        engine,
        settings,
        Drawn(engine.tokenizer, "test"),
        facts=None if chosen.folder is None else Export.find(chosen.folder).facts,
        external=external,
        say=partial(print, file=sys.stderr),
        show=partial(print, flush=True),
    )
    result = benchmark.run()
    folder = _folder(config, chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    samples = [sample_values(each) for each in benchmark.samples]
    about = {"command": result.command, "provenance": asdict(result.provenance)}
    write_json(folder / SAMPLES, {**about, "samples": samples})
    print(f"\n{result.command}\n{result.seconds:.0f} s; saved in {result.write(folder)}")


def _folder(config: DictConfig, export: Path | None) -> Path:
    """Where the result goes: by default beside the export."""
    if config.out_dir is not None:
        return Path(config.out_dir)
    named = config.export or config.checkpoint
    if export is None:
        return Path("outputs") / "benchmark-native"
    return beside(export if named is None or Path(named).exists() else Path(named), "benchmark")
