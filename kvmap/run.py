"""A run's folder: one owner, everything in it relative, the record that W&B only mirrors."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from kvmap.errors import KVMapError
from kvmap.jsonfile import read_object, write_json
from kvmap.provenance import Provenance

OWNER, METRICS, CONFIG = "run.json", "metrics.json", "config.yaml"
PLACES = ("out_dir",)
"""Config keys that say where a run lies, not what it is."""


class RunFolder:
    """The folder of one run, held while the ``with`` block lasts.

    The first run writes its config's digest into ``run.json``. A run with the same config may
    enter again, to resume or to find that all is done; any other is refused.

    Args:
        folder: The run's folder; made when missing.
        config: The composed config.
        overrides: What was asked for on the command line.

    Raises:
        KVMapError: The folder belongs to another run, or that run is still going.
    """

    def __init__(self, folder: Path, config: DictConfig, overrides: list[str]) -> None:
        self.folder = folder
        self.config: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        self.overrides = overrides
        self._lock = FileLock(folder / ".lock", timeout=0)

    def __enter__(self) -> "RunFolder":
        """Take possession."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise KVMapError(
                f"another process is running in {self.folder}; wait for it "
                "or choose another out_dir"
            ) from None
        try:
            self._claim()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Let go; the folder stays this run's, unless it failed before it left anything there."""
        if error is not None and not self._entries() - {OWNER, CONFIG}:
            (self.folder / OWNER).unlink()
            (self.folder / CONFIG).unlink(missing_ok=True)
        self._lock.release()

    @property
    def digest(self) -> str:
        """Twelve hex digits of what the run is, wherever it lies."""
        what = {key: value for key, value in self.config.items() if key not in PLACES}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def finished(self) -> bool:
        """Whether this run came to its end before."""
        return (self.folder / METRICS).is_file() and (self.folder / "export/config.json").is_file()

    @property
    def metrics(self) -> dict[str, float | None]:
        """What a finished run measured."""
        return read_object(self.folder / METRICS, "a run's metrics")

    @property
    def last_checkpoint(self) -> Path | None:
        """Where an interrupted training goes on."""
        path = self.folder / "checkpoints" / "last.ckpt"
        return path if path.is_file() else None

    def _entries(self) -> set[str]:
        return {entry.name for entry in self.folder.iterdir() if entry.name != ".lock"}

    def _claim(self) -> None:
        owner = self.folder / OWNER
        if owner.is_file():
            known = read_object(owner, "a run's owner file", "digest")["digest"]
            if known != self.digest:
                raise KVMapError(
                    f"{self.folder} belongs to another run (config {known}, this one has "
                    f"{self.digest}); choose another out_dir"
                )
            return
        strangers = self._entries()
        if strangers:
            raise KVMapError(
                f"{self.folder} is not empty (it has {min(strangers)}) and is no run's; "
                "choose another out_dir"
            )
        text = OmegaConf.to_yaml(OmegaConf.create(self.config))
        (self.folder / CONFIG).write_text(text, encoding="utf-8")
        record = {"digest": self.digest, "overrides": self.overrides} | asdict(Provenance())
        write_json(owner, record)
