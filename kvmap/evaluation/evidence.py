"""What an export carries of its evaluation: enough to decide whether it may be served."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from kvmap.arguments import require_whole
from kvmap.errors import KVMapError
from kvmap.evaluation.arms import Arm
from kvmap.evaluation.result import DataFacts, EvaluationResult
from kvmap.evaluation.statistics import Estimate
from kvmap.evaluation.structure import read_structured
from kvmap.export import EVIDENCE, ExportConfig
from kvmap.jsonfile import write_json
from kvmap.provenance import Provenance

FORMAT = 1


@dataclass(frozen=True)
class ArmEvidence:
    """One arm in short.

    Attributes:
        name: Its name.
        repaired_share: Share of a prompt that the answering model computes itself.
        passages: Passages of the continuation.
        nll: Nats/token; None where it was not asked, as for all that follow.
        gap_closed: None also where the gap is too small.
        context_used: None also where the window loses nothing.
        lookups: Share of look-ups right.
        lookup_items: How many look-ups.
        choices: Share of four-way choices right.
    """

    name: str
    repaired_share: float
    passages: int
    nll: Estimate | None
    gap_closed: Estimate | None
    context_used: Estimate | None
    lookups: Estimate | None
    lookup_items: int
    choices: Estimate | None


@dataclass(frozen=True)
class Evidence:
    """What stands in an export's ``evidence.json``.

    Attributes:
        weights_sha256: Digest of the weights that it speaks of.
        repair: r of the operating point.
        prefix: p of the operating point.
        chosen_on: The set that the operating point was chosen on.
        reported_on: The set of the numbers below.
        above_mismatched: Nats/token that the served arm is better than the mismatched control.
        arms: All arms, controls included; source and target first.
        data: The text.
        seed: Of the evaluation.
        provenance: Versions, commit, time.
        format: Version of this layout.
    """

    weights_sha256: str
    repair: int
    prefix: int
    chosen_on: str
    reported_on: str
    above_mismatched: Estimate
    arms: list[ArmEvidence]
    data: DataFacts
    seed: int
    provenance: Provenance
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Refuse a repair that cannot be, and what speaks of other arms than it should."""
        require_whole("repair", self.repair, 0)
        require_whole("prefix", self.prefix, 0)
        told = {arm.name for arm in self.arms}
        for name in ("source", "target", self._served_name):
            if name not in told:
                raise KVMapError(f"arms hold no {name}")

    @property
    def served(self) -> ArmEvidence:
        """The arm at the operating point."""
        return self._arm(self._served_name)

    def __str__(self) -> str:
        """What the served arm is worth, source and target beside it."""
        served, source, target = self.served, self._arm("source"), self._arm("target")
        lines = [
            f"evidence: {self.reported_on} documents, {served.passages} passages, "
            f"repair {self.repair} chosen on {self.chosen_on}",
            f"    better than with another prompt's cache by {self.above_mismatched} nats/token",
        ]
        if served.gap_closed is not None:
            lines.append(f"    gap closed {served.gap_closed} (source 0, target 1)")
        if served.context_used is not None:
            lines.append(f"    context used {served.context_used} (a window alone 0, target 1)")
        if served.lookups is not None and source.lookups and target.lookups:
            lines.append(
                f"    look-ups right {served.lookups} of {served.lookup_items} "
                f"(source {source.lookups.value:.3f}, target {target.lookups.value:.3f})"
            )
        return "\n".join(lines)

    @property
    def _served_name(self) -> str:
        return Arm("mapped", self.repair, self.prefix).name

    def _arm(self, name: str) -> ArmEvidence:
        return next(arm for arm in self.arms if arm.name == name)

    @classmethod
    def of(cls, result: EvaluationResult, above_mismatched: Estimate) -> Self:
        """The evidence in an evaluation.

        Args:
            result: The evaluation.
            above_mismatched: Nats/token that the served arm is better than its mismatched control.
        """
        return cls(
            weights_sha256=result.mapper.weights_sha256,
            repair=result.operating_point.repair,
            prefix=result.operating_point.prefix,
            chosen_on=result.operating_point.chosen_on,
            reported_on=result.operating_point.reported_on,
            above_mismatched=above_mismatched,
            arms=[
                ArmEvidence(
                    name=arm.name,
                    repaired_share=arm.repaired_share,
                    passages=arm.continuation.passages if arm.continuation else 0,
                    nll=arm.continuation.nll if arm.continuation else None,
                    gap_closed=arm.continuation.gap_closed if arm.continuation else None,
                    context_used=arm.continuation.context_used if arm.continuation else None,
                    lookups=arm.lookups.accuracy if arm.lookups else None,
                    lookup_items=arm.lookups.items if arm.lookups else 0,
                    choices=arm.choices.accuracy if arm.choices else None,
                )
                for arm in result.arms
                if not arm.arm.exact
            ],
            data=result.data,
            seed=result.settings.seed,
            provenance=result.provenance,
        )

    def write(self, folder: Path) -> Path:
        """Write ``evidence.json`` into an export's folder."""
        write_json(folder / EVIDENCE, asdict(self))
        return folder / EVIDENCE


def read_evidence(folder: Path) -> Evidence | None:
    """What an export's folder says of its worth; None when it says nothing.

    Raises:
        KVMapError: The file is damaged or of another version.
    """
    path = folder / EVIDENCE
    if not path.is_file():
        return None
    return read_structured(Evidence, path, "an export's evidence", FORMAT)


def require_evidence(folder: Path) -> Evidence:
    """The evidence of an export that may be served.

    Raises:
        KVMapError: There is none, it speaks of other weights, or the served arm is not
            significantly better than the mismatched control.
    """
    again = f"run kvmap-evaluate export={folder}"
    evidence = read_evidence(folder)
    if evidence is None:
        raise KVMapError(f"{folder} carries no evidence of what its mapper is worth; {again}")
    digest = ExportConfig.read(folder).weights_sha256
    if evidence.weights_sha256 != digest:
        raise KVMapError(
            f"the evidence in {folder} speaks of weights {evidence.weights_sha256[:12]}, "
            f"the export has {digest[:12]}; {again}"
        )
    above = evidence.above_mismatched
    if not above.low > 0:
        raise KVMapError(
            f"{folder} is not better with the right prompt's cache than with another's "
            f"({above} nats/token at repair {evidence.repair}), so it should not be served; "
            "train a better mapper"
        )
    return evidence
