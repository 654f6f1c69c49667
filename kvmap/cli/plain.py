"""A composed config as plain values."""

from typing import Any

from omegaconf import DictConfig, OmegaConf


def plain(config: DictConfig) -> dict[str, Any]:
    """The config with its interpolations resolved, in dictionaries and lists."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
