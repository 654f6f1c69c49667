"""Arguments that gradient families have in common, checked in one sentence each."""

import math

from kvmap.errors import KVMapError


def require_whole(least: int, **numbers: object) -> None:
    """Refuse what is no whole number from ``least``.

    Raises:
        KVMapError: Names the first such argument.
    """
    for name, number in numbers.items():
        if not isinstance(number, int) or number < least:
            raise KVMapError(f"mapper.{name}={number} must be a whole number from {least}")


def require_step_size(lr: object) -> None:
    """Refuse a step size that is not a number above 0.

    Raises:
        KVMapError: Names it.
    """
    if not isinstance(lr, float | int) or not 0 < lr < math.inf:
        raise KVMapError(f"mapper.lr={lr} must be a number above 0, such as 1e-3")
