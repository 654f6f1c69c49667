"""The guard: does the target find its mapped past as believable as the source finds its own?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.evaluation.structure import structure
from kvmap.export import GUARD
from kvmap.jsonfile import read_json, write_json


def difference(target: Tensor, source: Tensor, tokens: Tensor) -> float:
    """Mean over the repaired tokens after the first of NLL_target - NLL_source, nats/token.

    Over a good cache the target is no more surprised by the prompt's end than the source, which
    read all of it; over another prompt's cache it is.

    Args:
        target: The target's logits after each repaired token ``[r, V]``.
        source: The source's ``[r, V]``.
        tokens: The repaired tokens ``[r]``.
    """
    follow = tokens[1:]
    theirs = F.cross_entropy(source[:-1].to(target.device), follow)
    return float(F.cross_entropy(target[:-1], follow) - theirs)


@dataclass(frozen=True)
class GuardCalibration:
    """A threshold and what it did on the documents that it was chosen on.

    Attributes:
        threshold: Nats/token.
        repair: Repaired tokens that it is for.
        detected: Share of mismatched caches above it.
        false_fallbacks: Share of good caches above it.
        prompts: How many of each.
    """

    threshold: float
    repair: int
    detected: float
    false_fallbacks: float
    prompts: int

    @classmethod
    def choose(
        cls, good: Sequence[float], mismatched: Sequence[float], repair: int
    ) -> "GuardCalibration":
        """The threshold of least error, half of it from either side.

        Args:
            good: Differences over the prompts' own mapped caches.
            mismatched: Differences over other prompts' mapped caches.
            repair: Repaired tokens.
        """
        right, wrong = torch.tensor(sorted(good)), torch.tensor(sorted(mismatched))
        every = torch.cat([right, wrong]).sort().values
        between = (every[1:] + every[:-1]) / 2
        errors = (right[:, None] > between).float().mean(0) + (
            wrong[:, None] <= between
        ).float().mean(0)
        least = (errors <= errors.min() + 1e-6).nonzero()[:, 0]
        # Of equally good thresholds the middle one: as far from both sides as may be.
        threshold = float((between[least[0]] + between[least[-1]]) / 2)
        detected, false = shares_above(threshold, mismatched, good)
        return cls(threshold, repair, detected, false, len(good))

    def save(self, export: Path) -> None:
        """Write it beside the export that it was measured with."""
        write_json(export / GUARD, asdict(self))


def shares_above(threshold: float, *groups: Sequence[float]) -> tuple[float, ...]:
    """Which share of each group of differences would fall back."""
    return tuple(sum(each > threshold for each in group) / len(group) for group in groups)


def read_threshold(asked: bool | str | float, export: Path | None, repair: int) -> float | None:
    """The threshold that ``guard=`` means: off, on (the export's own), or a number.

    Args:
        asked: The setting.
        export: The folder of the served export.
        repair: Repaired tokens, which the calibration must have been made for.

    Raises:
        KVMapError: It is none of these, or ``on`` without a calibration for this repair.
    """
    if asked is False or asked == "off":
        return None
    if asked is True or asked == "on":
        path = None if export is None else export / GUARD
        if path is None or not path.is_file():
            raise KVMapError(
                f"guard=on needs {GUARD} in the export; calibrate it with kvmap-guard export="
                f"{export}, or give guard= a number of nats/token"
            )
        try:
            found = structure(GuardCalibration, read_json(path, "a guard's calibration"))
        except TypeError as error:
            raise KVMapError(f"{path} is damaged ({error}); run kvmap-guard again") from error
        if found.repair != repair:
            raise KVMapError(
                f"{path} was calibrated for repair.tokens={found.repair}, not {repair}; run "
                f"kvmap-guard again, or serve with repair.tokens={found.repair}"
            )
        return found.threshold
    try:
        threshold = float(asked)
    except ValueError:
        raise KVMapError(f"guard={asked} is unknown; use off, on, or nats/token") from None
    if not threshold >= 0:
        raise KVMapError(f"guard={asked} would fall back always; use 0 or more nats/token")
    return threshold
