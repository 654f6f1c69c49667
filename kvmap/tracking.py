"""Weights & Biases: a mirror of the run's folder, finished inside its own job."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Literal

import wandb
from lightning.pytorch.loggers import WandbLogger

from kvmap.diagnostics import Diagnostics
from kvmap.errors import KVMapError
from kvmap.evaluation.report.section import Page
from kvmap.evaluation.report.write import HTML, JSON, MARKDOWN
from kvmap.report import Report
from kvmap.run import RunFolder

Mode = Literal["auto", "online", "offline"]


class Tracker:
    """How runs are tracked in W&B.

    Args:
        project: The W&B project.
        mode: ``auto`` is online where a key is found and offline otherwise, without a prompt.
        entity: Team or user; None is the key's own.
        group: Groups runs in W&B's tables.
        tags: Tags of the run.
        log_export: Whether the export is uploaded as an artifact.
    """

    def __init__(
        self,
        project: str = "kvmap",
        mode: Mode = "auto",
        entity: str | None = None,
        group: str | None = None,
        tags: list[str] | None = None,
        log_export: bool = True,
    ) -> None:
        if mode not in ("auto", "online", "offline"):
            raise KVMapError(f"logger.mode={mode} is unknown; use auto, online or offline")
        self.project, self.entity, self.group = project, entity, group
        self.tags, self.log_export = list(tags or []), log_export
        self.mode = resolve_mode(mode)

    @contextmanager
    def track(self, run: RunFolder, family: str) -> Iterator[WandbLogger]:
        """A logger for one run; finished on the way out, as failed when an exception passes."""
        logger = WandbLogger(
            name=f"{family}-{run.digest}",
            save_dir=run.folder,
            project=self.project,
            entity=self.entity,
            group=self.group,
            job_type="train",
            tags=self.tags,
            mode=self.mode,
            config=run.config,
            reinit="finish_previous",
            settings=wandb.Settings(silent=self.mode != "online"),
        )
        failed = True
        try:
            _ = logger.experiment
            yield logger
            failed = False
        finally:
            wandb.finish(exit_code=int(failed))

    def log(self, logger: WandbLogger, report: Report, export: Path) -> None:
        """Mirror a report: scalars into the summary, the layer table, the figures, the export."""
        logger.experiment.summary.update(report.metrics)
        columns = ["layer", *Diagnostics.names()]
        logger.log_table("layers", columns=columns, data=report.layer_table())
        for name, figure in report.figures().items():
            logger.experiment.log({name: wandb.Image(figure)})
        if self.log_export:
            artifact = wandb.Artifact(f"mapper-{logger.experiment.id}", type="mapper")
            artifact.add_dir(str(export))
            logger.experiment.log_artifact(artifact)

    def publish(self, page: Page, folder: Path) -> None:
        """Log an evaluation's or a sweep's page as a run of its own.

        Args:
            page: The page: its tables and figures.
            folder: Where its files lie; they become an artifact.
        """
        run = wandb.init(
            name=page.title,
            dir=folder,
            project=self.project,
            entity=self.entity,
            group=self.group,
            job_type="evaluate",
            tags=self.tags,
            mode=self.mode,
            config={fact.name: fact.value for fact in page.facts},
            reinit="finish_previous",
            settings=wandb.Settings(silent=self.mode != "online"),
        )
        with run:
            run.summary["verdict"] = "\n".join(page.summary)
            for number in page.numbers:
                run.summary[number.name] = number.value
                if number.low is not None and number.high is not None:
                    run.summary[f"{number.name}/low"] = number.low
                    run.summary[f"{number.name}/high"] = number.high
            for section in page.sections:
                if section.figure is not None:
                    run.log({section.name: wandb.Image(section.figure, caption=section.caption)})
                if section.table is not None:
                    rows = [list(row) for row in section.table.rows]
                    table = wandb.Table(columns=[*section.table.header], data=rows)
                    run.log({f"{section.name}_table": table})
            run.log({"report": wandb.Html((folder / HTML).read_text(encoding="utf-8"))})
            artifact = wandb.Artifact(f"evaluation-{run.id}", type="evaluation")
            for name in (HTML, MARKDOWN, JSON):
                artifact.add_file(str(folder / name))
            run.log_artifact(artifact)


def resolve_mode(mode: Mode) -> Literal["online", "offline", "disabled"]:
    """What ``auto`` means here: ``WANDB_MODE`` if set, else online exactly where a key is."""
    if mode != "auto":
        return mode
    asked = os.environ.get("WANDB_MODE")
    if asked in ("online", "offline", "disabled"):
        return asked  # type: ignore[return-value]
    return "online" if _has_key() else "offline"


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc().authenticators("api.wandb.ai") is not None
    except (OSError, NetrcParseError):
        return False


class Untracked:
    """No tracking: the run's folder alone."""

    @contextmanager
    def track(self, run: RunFolder, family: str) -> Iterator[Literal[False]]:
        """No logger."""
        yield False

    def log(self, logger: Literal[False], report: Report, export: Path) -> None:
        """Nothing."""

    def publish(self, page: Page, folder: Path) -> None:
        """Nothing."""
