"""Where results about an export go."""

from pathlib import Path


def beside(named: Path, what: str) -> Path:
    """A folder beside an export, in its run's or its sweep's folder.

    Args:
        named: An export, a run or a sweep by its folder; or a hub id.
        what: The folder's name.
    """
    if not named.exists():  # a hub id
        return Path("outputs") / f"{what}-{named.name}"
    return (named.parent if named.name == "export" else named) / what
