"""``kvmap-report``: pages that show what evaluations found; nothing is measured."""

from pathlib import Path

from omegaconf import DictConfig

from kvmap.cli.beside import beside
from kvmap.cli.command import command


@command("report")
def main(config: DictConfig) -> None:
    """Write the page of one evaluation, or the one that compares all mappers of a sweep."""
    from hydra.utils import instantiate

    from kvmap.errors import KVMapError
    from kvmap.evaluation.report.evaluation_page import evaluation_page
    from kvmap.evaluation.report.markdown import markdown_table
    from kvmap.evaluation.report.sweep import evaluations_below
    from kvmap.evaluation.report.sweep_page import short_table, sweep_page
    from kvmap.evaluation.report.write import write_page
    from kvmap.evaluation.result import FILE
    from kvmap.quiet import quiet

    quiet()
    named = [name for name in ("runs", "export", "evaluation") if config[name] is not None]
    if len(named) != 1:
        raise KVMapError(
            "name what to report: runs=<folder of a sweep>, export=<evaluated export> or "
            "evaluation=<folder of an evaluation>"
        )
    tracker = instantiate(config.logger)
    if config.runs is None:
        folder = Path(config.evaluation or beside(Path(config.export), "evaluation"))
        if not (folder / FILE).is_file():
            export = config.export
            gone = f"no folder {export} and " if export and not Path(export).exists() else ""
            raise KVMapError(
                f"there is {gone}no evaluation in {folder}; measure first (kvmap-evaluate "
                f"export={export or '…'}), or name where it lies (evaluation=…)"
            )
        page, into = evaluation_page(folder), Path(config.out_dir or folder)
    else:
        root = Path(config.runs)
        if not root.is_dir():
            raise KVMapError(f"runs={root} is no folder; name the folder of a sweep")
        for folder in evaluations_below(root):
            write_page(evaluation_page(folder), folder)
            print(f"one evaluation: {folder / 'report.html'}")
        page, into = sweep_page(root), Path(config.out_dir or root / "report")
    written = write_page(page, into)
    tracker.publish(page, into)
    print("\n".join(page.summary))
    if config.runs is not None:
        table = next(each.table for each in page.sections if each.name == "mappers")
        assert table is not None
        print(f"\n{markdown_table(short_table(table))}")
    print(f"\nreport: {written}")


if __name__ == "__main__":
    main()
