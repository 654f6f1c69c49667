"""Where an artefact comes from: versions, commit, time."""

import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("kvmap", "torch", "transformers", "lightning", "hydra-core", "safetensors", "numpy")


@dataclass(frozen=True)
class Provenance:
    """What made an artefact, in plain values.

    Attributes:
        created: UTC time, ISO 8601, seconds.
        python: The interpreter's version.
        versions: Installed version by package name.
        commit: Commit of the checkout that ran, with ``+`` when it had changes; None when kvmap
            did not run from a git checkout.
    """

    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    python: str = field(default_factory=platform.python_version)
    versions: dict[str, str] = field(default_factory=lambda: _versions())
    commit: str | None = field(default_factory=lambda: _commit())


def command_line() -> str:
    """What was typed to start this process, without the folder of the program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _versions() -> dict[str, str]:
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def _commit() -> str | None:
    """The commit of kvmap's own checkout, not of whatever folder the command was called in."""
    checkout = Path(__file__).resolve().parents[1]
    if not (checkout / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(
                ["git", "-C", str(checkout), *arguments],
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            ).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changes else "")
