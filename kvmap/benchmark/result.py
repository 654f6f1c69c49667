"""What a benchmark found: the content of ``benchmark.json``."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Self

from kvmap.benchmark.settings import BenchmarkSettings
from kvmap.evaluation.result import MapperFacts
from kvmap.evaluation.statistics import Estimate
from kvmap.evaluation.structure import read_structured
from kvmap.jsonfile import write_json
from kvmap.provenance import Provenance

FILE = "benchmark.json"
FORMAT = 1

Role = Literal["target", "source", "cold", "warm", "generate", "assisted", "external"]
"""Native target and source, the mapped path cold and warm, transformers' two, another server."""


@dataclass(frozen=True)
class StageTime:
    """One stage of an answer.

    Attributes:
        name: As in :class:`kvmap.runtime.answer.Stats`.
        ms: Median milliseconds over the prompts.
        floor_ms: What its products and bytes take at the device's measured rates; None for stages
            without either.
    """

    name: str
    ms: float
    floor_ms: float | None


@dataclass(frozen=True)
class BlockCount:
    """How often a block of one size was proposed.

    Attributes:
        size: Proposed tokens; 0 for a step without a draft.
        rounds: Blocks of this size, over all prompts.
    """

    size: int
    rounds: int


@dataclass(frozen=True)
class PeakMemory:
    """The most memory that was in use at once.

    Attributes:
        device: Which.
        mib: MiB, weights included.
    """

    device: str
    mib: float


@dataclass(frozen=True)
class ArmSpeed:
    """One arm at one length: medians, and how many times faster than the native target.

    Attributes:
        arm: Its name.
        role: What it is.
        ttft_ms: Milliseconds to the first token.
        tpot_ms: Milliseconds per token after it.
        total_ms: Milliseconds to the last token.
        tokens_per_second: Generated tokens / total latency.
        ttft: The native target's TTFT / this, paired per prompt.
        tpot: Likewise.
        total: Likewise.
        acceptance: Accepted / proposed tokens; None without a draft, and for prompts longer than
            the models' trained context.
        stages: Where the time went; empty for other programs.
        blocks: Histogram of block sizes, smallest first; empty without a draft.
        peak: By device; empty for another server, and where the system does not tell.
    """

    arm: str
    role: Role
    ttft_ms: float
    tpot_ms: float
    total_ms: float
    tokens_per_second: float
    ttft: Estimate
    tpot: Estimate
    total: Estimate
    acceptance: float | None
    stages: list[StageTime] = field(default_factory=list)
    blocks: list[BlockCount] = field(default_factory=list)
    peak: list[PeakMemory] = field(default_factory=list)


@dataclass(frozen=True)
class LengthSpeed:
    """All arms at one prompt length.

    Attributes:
        length: Tokens of prompt.
        prompts: How many.
        arms: The native target first.
    """

    length: int
    prompts: int
    arms: list[ArmSpeed]

    def find(self, role: Role) -> ArmSpeed | None:
        """The arm of a role."""
        return next((arm for arm in self.arms if arm.role == role), None)


@dataclass(frozen=True)
class ReadOrMap:
    """Making the target's KV of a prompt by mapping, against reading it.

    Attributes:
        length: Tokens of prompt, drawn at random.
        repeats: How often it was measured.
        random_kv: Whether the KV that is mapped is random numbers, since the models' trained
            context ends before.
        read_ms: Median milliseconds of the target's own prefill; the first token included, as in
            the others.
        source_ms: Of the source's prefill.
        map_ms: Of transfer and mapping into the target's cache.
        repair_ms: Of repair.
        warm: read / (transfer + map + repair), paired per repeat.
        cold: read / (source prefill + transfer + map + repair), paired per repeat. On two devices
            these overlap, and their whole counts.
    """

    length: int
    repeats: int
    random_kv: bool
    read_ms: float
    source_ms: float
    map_ms: float
    repair_ms: float
    warm: Estimate
    cold: Estimate


@dataclass(frozen=True)
class BenchmarkResult:
    """A benchmark of one mapper, or of none.

    Attributes:
        pair: The pair's name.
        mapper: The mapper; None where the engine answers natively only.
        repair: r.
        prefix: p.
        new_tokens: Generated tokens of an answer.
        source_device: Where the source runs, with its dtype.
        target_device: Where the target runs, with its dtype.
        threads: Of PyTorch on a CPU.
        gflops: 1e9 operations per second of a large product on the target's device.
        gbytes: 1e9 bytes per second of a large copy there.
        answers: Whole answers, by length.
        mapping: Mapping against reading, by length.
        command: What was typed.
        provenance: Versions, commit, time.
        settings: How much was measured.
        text: Fingerprint of the prompts.
        context: Tokens that both models were trained on.
        seconds: What all of it took.
        notes: What a reader has to know: lengths left out and why, answers cut short.
        format: Version of this layout.
    """

    pair: str
    mapper: MapperFacts | None
    repair: int
    prefix: int
    new_tokens: int
    source_device: str
    target_device: str
    threads: int
    gflops: float
    gbytes: float
    answers: list[LengthSpeed]
    mapping: list[ReadOrMap]
    command: str
    provenance: Provenance
    settings: BenchmarkSettings = field(default_factory=BenchmarkSettings)
    text: str = ""
    context: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    format: int = FORMAT

    def write(self, folder: Path) -> Path:
        """Write ``benchmark.json``."""
        write_json(folder / FILE, asdict(self))
        return folder / FILE

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read ``benchmark.json``, or that of a folder.

        Raises:
            KVMapError: It is missing, damaged or of another version.
        """
        path = path / FILE if path.is_dir() else path
        return read_structured(cls, path, "a benchmark", FORMAT)
