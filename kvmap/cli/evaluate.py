"""``kvmap-evaluate``: what a mapper is worth, against its controls, with intervals."""

from pathlib import Path

from omegaconf import DictConfig

from kvmap.cli.beside import beside
from kvmap.cli.command import command
from kvmap.cli.plain import plain


@command("evaluate")
def main(config: DictConfig) -> None:
    """Choose an operating point, measure all arms, write the result and the evidence."""
    from hydra.utils import instantiate

    from kvmap.arguments import require_switch
    from kvmap.benchmark.report import speed_line
    from kvmap.errors import KVMapError
    from kvmap.evaluation.candidates import Export, exports_below
    from kvmap.evaluation.evaluate import Evaluation
    from kvmap.evaluation.gates import gates, required
    from kvmap.evaluation.report.evaluation_page import evaluation_page
    from kvmap.evaluation.report.write import write_page
    from kvmap.evaluation.settings import Settings
    from kvmap.evaluation.table import table
    from kvmap.quiet import quiet

    quiet()
    if (config.runs is None) == (config.export is None):
        raise KVMapError("name what to evaluate: runs=<folder of a sweep> or export=<export>")
    required(config.gates)
    require_switch("quick", config.quick)
    if config.export is not None:
        exports = [Export.find(config.export)]
    else:
        exports = exports_below(Path(config.runs))
    sizes, speed = instantiate(config.sizes), instantiate(config.speed, _convert_="all")
    settings = Settings(
        sizes=sizes.quick() if config.quick else sizes,
        search=instantiate(config.search, _convert_="all"),
        speed=speed.quick() if config.quick else speed,
        curve=plain(config)["curve"],
        seed=config.seed,
        resamples=config.resamples,
    )
    pair, tracker = instantiate(config.pair), instantiate(config.logger)
    config.data.length = settings.sizes.length
    evaluation = Evaluation(
        pair=pair,
        corpus=instantiate(config.data, pair=pair).corpus,
        exports=exports,
        settings=settings,
        out_dir=_folder(config),
        reverse=Export.find(config.reverse_export) if config.reverse_export else None,
        harness=instantiate(config.harness, _convert_="all"),
    )
    result = evaluation.run()
    print(table(result))
    if evaluation.benchmark is not None:
        print(f"\n{speed_line(evaluation.benchmark)}")
    page = evaluation_page(evaluation.out_dir)
    report = write_page(page, evaluation.out_dir)
    tracker.publish(page, evaluation.out_dir)
    print(f"\nsaved in {evaluation.out_dir}; evidence in {evaluation.evidence}\nreport: {report}")
    held = gates(result, config.gates)
    for gate in held:
        print(gate)
    if not all(gate.passed for gate in held):
        raise SystemExit(2)


def _folder(config: DictConfig) -> Path:
    """Where the result goes: by default beside what is evaluated."""
    if config.out_dir is not None:
        return Path(config.out_dir)
    return beside(Path(config.runs if config.export is None else config.export), "evaluation")


if __name__ == "__main__":
    main()
