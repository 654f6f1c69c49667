"""Noise for sampling that depends on nothing but seed, position and token.

Source and target draw with the same noise at the same position, so they draw the same token
whenever their distributions allow it, and what a seed gives does not depend on who proposed it.
The hash is SplitMix64's finaliser (Steele, Lea & Flood 2014), in integers, so that every device
computes the same.
"""

import torch
from torch import Tensor


def _signed(constant: int) -> int:
    return constant - 2**64 if constant >= 2**63 else constant


STEP = _signed(0x9E3779B97F4A7C15)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def gumbel(seed: int, positions: Tensor, vocabulary: int) -> Tensor:
    """Independent standard Gumbel noise: argmax(logits + noise) is a draw from softmax(logits).

    Args:
        seed: 64-bit integer.
        positions: ``[T]`` int64 positions of the tokens to draw.
        vocabulary: V.

    Returns:
        ``[T, V]`` float64 on the device of ``positions``.
    """
    start = torch.full((), seed, dtype=torch.int64, device=positions.device)
    rows = _mix(_mix(start) + (positions + 1) * STEP)
    tokens = torch.arange(1, vocabulary + 1, device=positions.device)
    bits = _shift(_mix(rows[:, None] + tokens * STEP), 12)
    uniform = (bits.double() + 0.5) * 2.0**-52  # never 0 and never 1
    return -torch.log(-torch.log(uniform))


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right, zeros coming in: int64 has only the shift that keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
