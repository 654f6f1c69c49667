"""What an evaluation found: the content of ``evaluation.json``."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from kvmap.corpora.base import CorpusIdentity
from kvmap.evaluation.arms import Arm, Role
from kvmap.evaluation.settings import Settings
from kvmap.evaluation.statistics import Curve, Estimate, McNemar
from kvmap.evaluation.structure import read_structured
from kvmap.identity import Identity
from kvmap.jsonfile import write_json
from kvmap.provenance import Provenance

FILE = "evaluation.json"
FORMAT = 1


@dataclass(frozen=True)
class ContinuationResult:
    """Teacher-forced continuation. NLL and KL in nats/token.

    Attributes:
        passages: Passages, each a document of its own.
        tokens: Scored tokens per passage.
        nll: Mean NLL.
        below_source: NLL of the source less that of the arm; above 0 the arm is better.
        above_target: NLL of the arm less that of the target; above 0 the arm is worse.
        gap_closed: (source - arm) / (source - target); None where the gap is below 0.05.
        context_used: (window - arm) / (window - target), with the window of the arm's own repair.
        kl: KL(target ‖ arm).
        same_top: Share of tokens at which arm and target find the same token likeliest.
        kl_by_position: KL by position after the prompt.
        same_top_by_position: The share by position.
        nll_by_passage: Mean NLL of each passage, in the passages' order.
    """

    passages: int
    tokens: int
    nll: Estimate
    below_source: Estimate
    above_target: Estimate
    gap_closed: Estimate | None
    context_used: Estimate | None
    kl: Estimate
    same_top: Estimate
    kl_by_position: Curve
    same_top_by_position: Curve
    nll_by_passage: list[float]


@dataclass(frozen=True)
class AnswersResult:
    """Four-way questions. The three lists have one entry an item.

    Attributes:
        items: Questions.
        chance: Share right by guessing.
        accuracy: Share right.
        retention: Accuracy / target's accuracy on the same items.
        floor_normalised: The same with chance taken off both.
        against_target: McNemar against the target.
        against_source: McNemar against the source.
        repaired_share: Mean share of the prompts that was repaired.
        passages: Number of the passage of each item.
        distances: Tokens between binding and question of each item; empty for choices.
        hits: Whether each was answered right.
    """

    items: int
    chance: float
    accuracy: Estimate
    retention: Estimate | None
    floor_normalised: Estimate | None
    against_target: McNemar
    against_source: McNemar
    repaired_share: float
    passages: list[int]
    distances: list[int]
    hits: list[bool]


@dataclass(frozen=True)
class GreedyResult:
    """Greedy continuations against the target's.

    Attributes:
        passages: Continuations.
        tokens: Tokens of each.
        exact_match: Share that are the target's token for token.
        same_tokens: Share of tokens that are the target's at their place.
        same_start: Share of tokens before the first that is not the target's.
    """

    passages: int
    tokens: int
    exact_match: Estimate
    same_tokens: Estimate
    same_start: Estimate


@dataclass(frozen=True)
class ArmResult:
    """One arm.

    Attributes:
        name: Its name in tables.
        arm: What it does.
        family: Family of its mapper; empty for none.
        repaired_share: Share of a continuation's prompt that the answering model computes itself.
        continuation: None where it was not asked; so for the others.
        choices: Four-way choice of a continuation.
        lookups: Four-way in-context look-ups.
        greedy: Greedy continuations.
    """

    name: str
    arm: Arm
    family: str
    repaired_share: float
    continuation: ContinuationResult | None = None
    choices: AnswersResult | None = None
    lookups: AnswersResult | None = None
    greedy: GreedyResult | None = None


@dataclass(frozen=True)
class MapperFacts:
    """The mapper that was evaluated.

    Attributes:
        export: Its folder, as it was named.
        family: Its family.
        arguments: Its constructor's arguments (k, λ, inputs …).
        weights_sha256: Digest of its weights.
        collection: Fingerprint of the KV that it was fitted on.
        metrics: Development diagnostics from its export.
        refined: Whether it was refined after it was fitted.
    """

    export: str
    family: str
    arguments: dict[str, Any]
    weights_sha256: str
    collection: str
    metrics: dict[str, float | None]
    refined: bool = False


@dataclass(frozen=True)
class ColdTTFT:
    """Request accepted to first token, the source not having read the prompt before.

    Attributes:
        ms: Median milliseconds.
        times: The native target's TTFT / this, paired per prompt.
    """

    ms: float
    times: Estimate


@dataclass(frozen=True)
class Candidate:
    """One export at one repair, measured on the development set.

    Attributes:
        mapper: The export.
        repair: r.
        prefix: p.
        repaired_share: Share of a prompt that is repaired.
        nll: Nats/token.
        gap_closed: None where the gap is too small.
        context_used: None where the window loses nothing.
        lookups: Share of look-ups right; None where the text has none.
        lookups_floor_normalised: The same, chance taken off, over the target's.
        score: The least of (gap closed, else context used) and floor-normalised look-ups.
        chosen: Whether it is the operating point.
        cold_ttft: None where speed was not measured.
    """

    mapper: MapperFacts
    repair: int
    prefix: int
    repaired_share: float
    nll: Estimate
    gap_closed: Estimate | None
    context_used: Estimate | None
    lookups: Estimate | None
    lookups_floor_normalised: Estimate | None
    score: float
    chosen: bool = False
    cold_ttft: ColdTTFT | None = None


@dataclass(frozen=True)
class DiagnosticCorrelation:
    """How well a diagnostic of the export foretells its quality.

    Attributes:
        diagnostic: Its name, ``val/…``.
        quality: What it is held against: ``gap_closed`` or ``nll``.
        mappers: Over how many exports, at one repair.
        spearman: Rank correlation; None where one of the two does not vary.
    """

    diagnostic: str
    quality: str
    mappers: int
    spearman: Estimate | None


@dataclass(frozen=True)
class OperatingPoint:
    """What is served, and how it was chosen.

    Attributes:
        repair: r.
        prefix: p.
        chosen_on: The set that it was chosen on; ``nothing`` where there was no choice.
        reported_on: The set that all arms of the result are measured on.
        passages: Passages that it was chosen on.
        why: One sentence.
        candidates: All that were compared, in the order of measuring.
        correlations: Diagnostics against quality over the candidates' exports.
    """

    repair: int
    prefix: int
    chosen_on: str
    reported_on: str
    passages: int
    why: str
    candidates: list[Candidate] = field(default_factory=list)
    correlations: list[DiagnosticCorrelation] = field(default_factory=list)


@dataclass(frozen=True)
class Replacement:
    """What an exact part in place of the mapped one changes, at the operating point.

    Attributes:
        part: ``keys``, ``values`` or ``layer n``.
        nll_gain: Nats/token that the exact part saves.
        gap_gain: Gap closed with it less gap closed without; None where that is undefined.
    """

    part: str
    nll_gain: Estimate
    gap_gain: Estimate | None


@dataclass(frozen=True)
class HandoffTurn:
    """One turn of all conversations.

    Attributes:
        turn: Its number, from 0; the first is read natively by the source and not listed.
        speaker: The model that speaks.
        received: Tokens whose KV came from the other model, repaired ones included.
        mapped_nll: Nats/token of the turn's tokens with what was mapped.
        native_nll: The same model's own, having read the whole conversation itself.
        drift: Mapped less native NLL: what the handoffs so far cost.
    """

    turn: int
    speaker: str
    received: int
    mapped_nll: Estimate
    native_nll: Estimate
    drift: Estimate


@dataclass(frozen=True)
class Handoff:
    """Source and target in turns.

    Attributes:
        mode: ``new tokens`` (only they are mapped) or ``everything`` (all is mapped each turn).
        reverse: Export of the mapper from target to source; empty where the source reads all
            itself.
        repair: Repaired tokens of what is received in a turn.
        conversations: How many.
        turn_tokens: Tokens of a turn.
        turns: The turns.
        target_slope: Nats/token by which the target's drift grows per turn.
        source_slope: The same for the source; None without a reverse mapper.
    """

    mode: str
    reverse: str
    repair: int
    conversations: int
    turn_tokens: int
    turns: list[HandoffTurn]
    target_slope: Estimate
    source_slope: Estimate | None


@dataclass(frozen=True)
class Finding:
    """Something that should be seen, and whether it was.

    Attributes:
        what: One sentence.
        holds: Whether it is so; None where it cannot be told.
        measured: The number behind it.
    """

    what: str
    holds: bool | None
    measured: str


@dataclass(frozen=True)
class HarnessScore:
    """One number of lm-evaluation-harness.

    Attributes:
        arm: The arm's name.
        task: The task's name.
        metric: The metric's name and filter.
        value: What the harness reports.
        stderr: Its standard error; None where the harness gives none.
        samples: Documents.
        repaired_share: Share of the contexts' tokens that was repaired.
    """

    arm: str
    task: str
    metric: str
    value: float
    stderr: float | None
    samples: int
    repaired_share: float


@dataclass(frozen=True)
class DataFacts:
    """The text.

    Attributes:
        corpus: Which corpus.
        test: Fingerprint of the test passages with their questions.
        development: Fingerprint of the development passages; empty where none were read.
    """

    corpus: CorpusIdentity
    test: str
    development: str


@dataclass(frozen=True)
class EvaluationResult:
    """An evaluation of one mapper.

    Attributes:
        pair: The pair's name.
        direction: Its direction.
        source: The source model.
        target: The target model.
        mapper: The mapper at the operating point.
        settings: Sizes, search, seeds.
        data: The text.
        operating_point: What was chosen, on which set.
        arms: All arms on the test set, source and target first.
        curve: Names of the repair curve's arms, least repair first.
        replacements: The layer-wise reason.
        handoffs: Handoff over turns, by mode.
        findings: What should be seen, and whether it was.
        harness: Numbers of lm-evaluation-harness.
        seconds: What this call took; less than the whole where it went on from finished units.
        provenance: Versions, commit, time.
        format: Version of this layout.
    """

    pair: str
    direction: str
    source: Identity
    target: Identity
    mapper: MapperFacts
    settings: Settings
    data: DataFacts
    operating_point: OperatingPoint
    arms: list[ArmResult]
    curve: list[str]
    replacements: list[Replacement]
    handoffs: list[Handoff]
    findings: list[Finding]
    harness: list[HarnessScore]
    seconds: float
    provenance: Provenance
    format: int = FORMAT

    def find(self, role: Role) -> ArmResult | None:
        """The first arm of a role; of ``mapped`` the operating point."""
        point = self.operating_point
        for each in self.arms:
            served = (each.arm.repair, each.arm.prefix) == (point.repair, point.prefix)
            if each.arm.role == role and (role != "mapped" or served):
                return each
        return None

    def write(self, folder: Path) -> Path:
        """Write ``evaluation.json``."""
        write_json(folder / FILE, asdict(self))
        return folder / FILE

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read ``evaluation.json``, or that of a folder.

        Raises:
            KVMapError: It is missing, damaged or of another version.
        """
        path = path / FILE if path.is_dir() else path
        return read_structured(cls, path, "an evaluation", FORMAT)
