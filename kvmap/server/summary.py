"""What an answer says about itself: OpenAI's ``usage`` and our ``kvmap`` object."""

from dataclasses import dataclass
from typing import Any, Self

from kvmap.runtime.answer import Stats
from kvmap.runtime.options import Mode
from kvmap.server.contract import AnsweringEngine


@dataclass(frozen=True)
class Served:
    """What is served; known before any prompt is answered.

    Attributes:
        model: The name that clients give.
        pair: The pair's name.
        mapper: Digest of the mapper's weights; None without a mapper, or one never exported.
        family: The mapper's family; None without a mapper.
        mode: How prompts are answered where a request says nothing.
        limit: Most positions: prompt and new tokens.
    """

    model: str
    pair: str
    mapper: str | None
    family: str | None
    mode: Mode
    limit: int

    @classmethod
    def of(cls, engine: AnsweringEngine, model: str | None) -> Self:
        """Describe an engine, under a name or under its pair's."""
        mapper = engine.mapper
        exported = mapper.exported if mapper is not None else None
        return cls(
            model=model or engine.pair.name,
            pair=engine.pair.name,
            mapper=exported.weights_sha256 if exported is not None else None,
            family=mapper.family if mapper is not None else None,
            mode=engine.mode,
            limit=engine.limit,
        )

    def headers(self, mode: Mode | None) -> dict[str, str]:
        """What an answer's headers can say before the answer is there."""
        how = mode or self.mode
        by_mapper = how == "mapped"
        told = {
            "X-KVMap-Mode": how,
            "X-KVMap-Family": self.family if by_mapper else None,
            "X-KVMap-Mapper": self.mapper if by_mapper else None,
        }
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True)
class Summary:
    """A finished answer's statistics, copied so that two threads can read them.

    Attributes:
        served: What answered.
        mode: How it was answered.
        prompt: Tokens of the prompt.
        reused: Prompt tokens whose KV was still there from an earlier request.
        mapped: Prompt tokens whose KV the mapper gave.
        repaired: Prompt tokens that the target computed over the mapped rest.
        native: Prompt tokens that the answering model read itself.
        generated: Tokens of the answer.
        proposed: Tokens that the draft proposed.
        accepted: Those of them that the target would have chosen too.
        acceptance: Accepted tokens / proposed tokens; None without proposals.
        fell_back: Whether the guard sent the prompt through the target's own prefill.
        guard_difference: Nats/token that the guard found; None where it did not look.
        queue_s: Seconds in the queue.
        ttft_s: Seconds from the request's place in the queue to its first token.
        tpot_s: Seconds per token after the first; None with fewer than two.
    """

    served: Served
    mode: Mode
    prompt: int
    reused: int
    mapped: int
    repaired: int
    native: int
    generated: int
    proposed: int
    accepted: int
    acceptance: float | None
    fell_back: bool
    guard_difference: float | None
    queue_s: float
    ttft_s: float
    tpot_s: float | None

    @classmethod
    def of(cls, served: Served, stats: Stats, queue_s: float, ttft_s: float) -> Self:
        """Copy statistics."""
        return cls(
            served=served,
            mode=stats.mode,
            prompt=stats.prompt,
            reused=stats.reused,
            mapped=stats.mapped,
            repaired=stats.repaired,
            native=stats.prefilled,
            generated=stats.generated,
            proposed=stats.proposed,
            accepted=stats.accepted,
            acceptance=stats.acceptance,
            fell_back=stats.fell_back,
            guard_difference=stats.guard_difference,
            queue_s=queue_s,
            ttft_s=ttft_s,
            tpot_s=stats.tpot,
        )

    def usage(self) -> dict[str, Any]:
        """OpenAI's ``usage``."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.reused},
        }

    def extension(self) -> dict[str, Any]:
        """The ``kvmap`` object: who answered, what became of the prompt, how drafting went."""
        by_mapper = self.mode == "mapped"
        return {
            "mode": self.mode,
            "mapper": self.served.mapper if by_mapper else None,
            "family": self.served.family if by_mapper else None,
            "mapped_tokens": self.mapped,
            "repaired_tokens": self.repaired,
            "reused_tokens": self.reused,
            "native_tokens": self.native,
            "proposed_tokens": self.proposed,
            "accepted_tokens": self.accepted,
            "acceptance_rate": self.acceptance,
            "fell_back": self.fell_back,
            "guard_difference": self.guard_difference,
            "queue_ms": 1000 * self.queue_s,
            "ttft_ms": 1000 * self.ttft_s,
            "tpot_ms": None if self.tpot_s is None else 1000 * self.tpot_s,
        }
