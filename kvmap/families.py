"""The mapper families that this kvmap has, found by their modules."""

import importlib
import pkgutil

import kvmap.mappers
from kvmap.errors import KVMapError
from kvmap.mappers.base import Mapper


def families() -> list[str]:
    """Names of all mapper families: the modules of :mod:`kvmap.mappers` that define one."""
    modules = (module.name for module in pkgutil.iter_modules(kvmap.mappers.__path__))
    return [name for name in modules if name != "base" and _classes(name)]


def family_class(name: str) -> type[Mapper]:
    """The class of a family of ours; a name from elsewhere is never imported.

    Raises:
        KVMapError: There is no such family.
    """
    known = families()
    if name not in known:
        raise KVMapError(f"unknown mapper family {name!r}; this kvmap has {', '.join(known)}")
    return _classes(name)[0]


def _classes(module: str) -> list[type[Mapper]]:
    """The families that a module of :mod:`kvmap.mappers` defines."""
    members = vars(importlib.import_module(f"kvmap.mappers.{module}")).values()
    return [
        member
        for member in members
        if isinstance(member, type)
        and issubclass(member, Mapper)
        and member.__module__ == f"kvmap.mappers.{module}"
    ]
