"""What every command shares: Hydra's composition, and errors told in one sentence."""

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, InstantiationException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from kvmap.cli.typed import PATHS, typed
from kvmap.errors import KVMapError


def command(
    config_name: str, verbatim: Sequence[str] = ()
) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """Make a function of the composed config a command.

    What the user can mend, a ``KVMapError`` or an override that does not exist, is printed as one
    sentence and ends the process with status 1. Any other exception keeps its traceback, because
    it is a defect of ours. In a sweep a job that fails lets the others run first.

    Args:
        config_name: The primary config in ``conf/``, without its ending.
        verbatim: Settings whose text is taken as it is typed, commas, braces and all.
    """

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[[], None]:
        told: list[str] = []

        @functools.wraps(function)
        def job(config: DictConfig) -> Any:
            try:
                _require_names(config)
                return function(config)
            except (KVMapError, InstantiationException) as error:
                mendable = isinstance(error.__cause__, KVMapError)
                sentence = str(error.__cause__) if mendable else _sentence(error)
                if HydraConfig.get().mode == RunMode.MULTIRUN:
                    raise CompactHydraException(sentence) from None
                told.append(sentence)  # past Hydra, which would print its overrides first

        composed = hydra.main(
            version_base="1.3", config_path="pkg://kvmap.conf", config_name=config_name
        )(job)

        @functools.wraps(function)
        def main() -> None:
            # Hydra then hands exceptions on, where it would print some in a form of its own.
            os.environ["HYDRA_FULL_ERROR"] = "1"
            sys.argv[1:] = typed(sys.argv[1:], verbatim)
            told.clear()
            try:
                composed()
            except CompactHydraException as error:
                told.append(_sentence(error))
            except KeyboardInterrupt:
                print(
                    "kvmap: interrupted; the same command (and out_dir) goes on from here",
                    file=sys.stderr,
                )
                raise SystemExit(130) from None
            if told:
                print(f"kvmap: {told[0]}", file=sys.stderr)
                raise SystemExit(1)

        return main

    return decorate


def _require_names(config: DictConfig) -> None:
    """Refuse a path that is empty, or no text, as a list in a sweep or in a config may be.

    Raises:
        KVMapError: There is one.
    """
    for name in PATHS:
        value = OmegaConf.select(config, name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise KVMapError(
                f"{name}={value} names nothing; give a folder, a file or a hub id, or leave it out"
            )


def _sentence(error: Exception) -> str:
    """A complaint, of Hydra without its search path and its advice to set variables."""
    if isinstance(error, MissingConfigException) and error.options:
        return f"there is no {error.missing_cfg_file}; choose from {', '.join(error.options)}"
    unknown = re.search(r"Could not override '([^']+)'", str(error))
    if unknown:
        return f"there is no setting {unknown[1]}; --cfg job lists those there are"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])
