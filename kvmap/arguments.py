"""Numbers that users give, checked in one sentence each."""

import math

from kvmap.errors import KVMapError


def require_whole(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number of at least so much.

    Raises:
        KVMapError: Names the setting and its value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise KVMapError(f"{name}={value} must be a whole number from {least}")


def require_step_size(name: str, value: object) -> None:
    """Refuse a step size that is not a number above 0.

    Raises:
        KVMapError: Names the setting and its value.
    """
    if not isinstance(value, float | int) or not 0 < value < math.inf:
        raise KVMapError(f"{name}={value} must be a number above 0, such as 1e-3")
