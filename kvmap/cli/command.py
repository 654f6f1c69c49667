"""What every command shares: Hydra's composition, and errors told in one sentence."""

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig

from kvmap.errors import KVMapError


def command(config_name: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], Any]]:
    """Make a function of the composed config a command.

    A ``KVMapError`` raised inside, also through a constructor that Hydra calls, is printed as its
    sentence alone and ends the process with status 1; any other exception keeps its traceback,
    because it is a defect of ours.

    Args:
        config_name: The primary config in ``conf/``, without its ending.
    """

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[[], Any]:
        @functools.wraps(function)
        def reported(config: DictConfig) -> Any:
            try:
                return function(config)
            except KVMapError as error:
                _tell(error)
            except InstantiationException as error:
                if not isinstance(error.__cause__, KVMapError):
                    raise
                _tell(error.__cause__)

        return hydra.main(
            version_base="1.3", config_path="pkg://kvmap.conf", config_name=config_name
        )(reported)

    return decorate


def _tell(error: KVMapError) -> NoReturn:
    """End a single run at once; in a sweep, fail this job and let the others run."""
    sentence = f"kvmap: {error}"
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        raise CompactHydraException(sentence) from None
    print(sentence, file=sys.stderr)
    raise SystemExit(1)
