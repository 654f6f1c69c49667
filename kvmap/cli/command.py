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
from omegaconf import DictConfig

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
            sys.argv[1:] = [_quoted(word, verbatim) for word in sys.argv[1:]]
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


def _quoted(word: str, verbatim: Sequence[str]) -> str:
    """A word of the command line; if it is a verbatim setting, quoted for Hydra's grammar.

    What is quoted already, and ``null``, stays as it is.
    """
    name, equals, text = word.partition("=")
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if not equals or name not in verbatim or quoted or text in ("", "null"):
        return word
    # A backslash counts only before a quote, a brace or the end; interpolation is escaped.
    text = re.sub(r"(\\*)('|$|\$\{)", lambda found: found[1] * 2 + _ESCAPED[found[2]], text)
    return f"{name}='{text}'"


_ESCAPED = {"'": "\\'", "${": "\\${", "": ""}


def _sentence(error: Exception) -> str:
    """A complaint, of Hydra without its search path and its advice to set variables."""
    if isinstance(error, MissingConfigException) and error.options:
        return f"there is no {error.missing_cfg_file}; choose from {', '.join(error.options)}"
    unknown = re.search(r"Could not override '([^']+)'", str(error))
    if unknown:
        return f"there is no setting {unknown[1]}; --cfg job lists those there are"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])
