"""Paths as a person types them."""

from pathlib import Path


def relative(path: Path) -> Path:
    """A path as a person in this folder would type it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
