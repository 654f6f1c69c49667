"""Values that users give, checked in one sentence each."""

import math

from kvmap.errors import KVMapError


def require_whole(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number of at least so much.

    Raises:
        KVMapError: Names the setting and its value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise KVMapError(f"{name}={value} must be a whole number from {least}")


def require_wholes(name: str, values: object, least: int) -> None:
    """Refuse what is no list of such numbers.

    Raises:
        KVMapError: Names the setting and its value.
    """
    if not isinstance(values, list):
        raise KVMapError(f"{name}={values} must be a list of whole numbers, such as [512,1024]")
    for value in values:
        require_whole(name, value, least)


def require_switch(name: str, value: object) -> None:
    """Refuse what is neither true nor false.

    Raises:
        KVMapError: Names the setting and its value.
    """
    if not isinstance(value, bool):
        raise KVMapError(f"{name}={value} must be true or false")


def require_step_size(name: str, value: object) -> None:
    """Refuse a step size that is not a number above 0.

    Raises:
        KVMapError: Names the setting and its value.
    """
    if not isinstance(value, float | int) or not 0 < value < math.inf:
        raise KVMapError(f"{name}={value} must be a number above 0, such as 1e-3")
