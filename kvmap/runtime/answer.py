"""What the engine gives back."""

from dataclasses import dataclass, field
from typing import Literal

from kvmap.runtime.options import Mode
from kvmap.runtime.stages import Stages

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the answering model found a token it gave, before temperature and top-p.

    Attributes:
        token: The generated token.
        logprob: Its natural log-probability.
        top: The likeliest tokens at its place with theirs, best first; empty unless asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Stats:
    """What an answer took. Times in seconds, counts in tokens.

    Attributes:
        mode: How it was answered.
        prompt: Tokens of the prompt; ``reused + mapped + repaired`` of them, or with the target's
            or source's own prefill ``reused + prefilled``.
        reused: Prompt tokens whose KV was still there from an earlier request.
        mapped: Prompt tokens whose KV the mapper gave.
        warm: Prompt tokens that the source had read already, in an answer of its own.
        repaired: Prompt tokens that the target computed over the mapped rest.
        prefilled: Prompt tokens that the answering model read natively.
        generated: Tokens of the answer.
        proposed: Tokens that the draft proposed.
        accepted: Those of them that the target would have chosen too.
        corrected: Tokens of the target's own in place of the first proposal that disagreed.
        bonus: Tokens of the target's own after a block that agreed as a whole.
        blocks: Tokens proposed in each round, 0 where there was no draft.
        fell_back: Whether the guard sent the prompt through the target's own prefill.
        guard_difference: Nats/token that the target found the repaired tokens worse than the
            source did; None where the guard did not look.
        ttft: From acceptance to the first token.
        latency: From acceptance to the last token.
        stages: Seconds by stage.
    """

    mode: Mode
    prompt: int = 0
    reused: int = 0
    mapped: int = 0
    warm: int = 0
    repaired: int = 0
    prefilled: int = 0
    generated: int = 0
    proposed: int = 0
    accepted: int = 0
    corrected: int = 0
    bonus: int = 0
    blocks: list[int] = field(default_factory=list)
    fell_back: bool = False
    guard_difference: float | None = None
    ttft: float = 0.0
    latency: float = 0.0
    stages: Stages = field(default_factory=Stages)

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first: ``(latency - ttft) / (generated - 1)``."""
        return None if self.generated < 2 else (self.latency - self.ttft) / (self.generated - 1)

    @property
    def throughput(self) -> float | None:
        """Generated tokens per second of the whole."""
        return self.generated / self.latency if self.latency else None

    @property
    def acceptance(self) -> float | None:
        """Accepted tokens / proposed tokens."""
        return self.accepted / self.proposed if self.proposed else None

    def summary(self) -> str:
        """What became of the prompt and of the draft's proposals, in two lines."""
        shares = {
            "reused": self.reused,
            "mapped": self.mapped,
            "repaired": self.repaired,
            "read natively": self.prefilled,
        }
        prompt = ", ".join(f"{count} {what}" for what, count in shares.items() if count)
        lines = [f"{self.prompt} prompt tokens: {prompt}", f"{self.generated} generated"]
        if self.fell_back:
            lines[0] += " (the guard fell back)"
        if self.proposed:
            lines[1] += (
                f"; {self.accepted} of {self.proposed} proposals accepted in {len(self.blocks)} "
                f"rounds, {self.corrected} corrections, {self.bonus} bonus tokens"
            )
        if self.tpot is not None:
            lines[1] += f"; TTFT {1000 * self.ttft:.0f} ms, TPOT {1000 * self.tpot:.1f} ms"
        return "\n".join(lines)


@dataclass(frozen=True)
class Piece:
    """What one round adds to an answer.

    Attributes:
        text: New text; whole characters only, and nothing that may yet turn into a stop string.
        tokens: New tokens; their text may come later.
        logprobs: One for each of them if asked for.
        finish_reason: ``stop`` (end token, stop token or stop string) or ``length`` in the last
            piece, None before.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Answer:
    """One whole answer.

    Attributes:
        tokens: Generated tokens, the one that ended the answer included.
        text: Their text without special tokens, up to the stop string if one was met.
        finish_reason: ``stop`` or ``length``.
        logprobs: One for each token if asked for.
        stats: What it took.
    """

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...]
    stats: Stats
