"""``kvmap-benchmark``: how fast every way of answering is, on the same prompts in one run."""

from omegaconf import DictConfig

from kvmap.cli.command import command


@command("benchmark")
def main(config: DictConfig) -> None:
    """Choose an export, time all arms at every length, print tables and stage times."""
    import sys
    from dataclasses import asdict
    from pathlib import Path

    import torch
    from hydra.utils import instantiate

    from kvmap.benchmark.arms import Arm, EngineArm, GenerateArm
    from kvmap.benchmark.floors import Rates, stage_floors
    from kvmap.benchmark.measure import measure
    from kvmap.benchmark.report import HEADER, markdown, plain, rows, stage_table
    from kvmap.jsonfile import write_json
    from kvmap.provenance import Provenance
    from kvmap.quiet import quiet
    from kvmap.runtime.chosen import choose, load_engine
    from kvmap.tiny.prompts import prompts as prompts_of

    quiet()
    if config.threads:
        torch.set_num_threads(config.threads)
    chosen, pair = choose(config), instantiate(config.pair)
    print(chosen.why)
    engine = load_engine(chosen, pair, config)
    family = engine.mapper.family if engine.mapper else "native"
    mapped = f"{family} + repair {config.repair.tokens}"
    arms: list[Arm] = [EngineArm("target", engine, "target"), EngineArm("source", engine, "source")]
    if engine.mapper is not None:
        arms.append(EngineArm(f"{mapped}, cold", engine, "mapped"))
        arms.append(EngineArm(f"{mapped}, warm", engine, "mapped", warm=True))
    if config.transformers:
        source, target = pair.source.load(), pair.target.load()
        arms.append(GenerateArm("target, generate", target))
        arms.append(GenerateArm("target, assisted", target, source))
    rates = Rates.measure(engine.target.device, engine.target.model.dtype)
    print(
        f"{engine.target.device}, {torch.get_num_threads()} threads: "
        f"{rates.flops / 1e9:.0f} GFLOP/s in a product, {rates.bytes / 1e9:.1f} GB/s in a copy"
    )
    samples = []
    for length in config.lengths:
        prompts = prompts_of(engine.tokenizer, "test", length, config.prompts)
        here = measure(arms, prompts, config.new_tokens, lambda line: print(line, file=sys.stderr))
        samples += here
        lines = [row.cells(config.new_tokens) for row in rows(here, "target")]
        print(f"\n{length} prompt tokens, {config.new_tokens} new, {len(prompts)} prompts\n")
        print(markdown(HEADER, lines))
        for arm in ("target", f"{mapped}, cold"):
            timings = [each.timing for each in here if each.arm == arm]
            if timings:
                floors = [
                    stage_floors(t.stats, engine.source, engine.target, engine.mapper, rates)
                    for t in timings
                    if t.stats is not None
                ]
                print(f"\n{arm}\n\n{stage_table(timings, floors)}", flush=True)
    if config.out:
        kept = {"provenance": asdict(Provenance()), "samples": [plain(each) for each in samples]}
        write_json(Path(config.out), kept)
        print(f"\nsamples: {config.out}")
