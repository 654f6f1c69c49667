"""Which points are beaten by none in both of two respects."""

from collections.abc import Sequence
from typing import NamedTuple


class Point(NamedTuple):
    """One mapper; more is better in both."""

    quality: float
    speed: float


def pareto(points: Sequence[Point]) -> list[bool]:
    """Whether each point is on the front: no other is as good in both and better in one."""
    best = float("-inf")
    front = [False] * len(points)
    order = sorted(range(len(points)), key=lambda i: (-points[i].speed, -points[i].quality))
    for place, i in enumerate(order):
        tied = place > 0 and points[order[place - 1]] == points[i]
        if points[i].quality > best or (tied and front[order[place - 1]]):
            front[i] = True
            best = points[i].quality
    return front
