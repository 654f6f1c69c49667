"""kvmap: mappers that turn a small model's KV cache into a large model's."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvmap.export import load_mapper

__all__ = ["load_mapper"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import on first use, so that a command's ``--help`` need not load torch."""
    if name == "load_mapper":
        from kvmap.export import load_mapper

        return load_mapper
    raise AttributeError(f"module 'kvmap' has no attribute {name!r}")
