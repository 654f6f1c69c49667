"""What a request may ask of the engine."""

from dataclasses import dataclass
from typing import Literal

from kvmap.errors import KVMapError

Mode = Literal["mapped", "target", "source"]
MODES: tuple[Mode, ...] = ("mapped", "target", "source")
MAX_TOP = 20  # likeliest tokens reported per position, as OpenAI's API bounds it


class RequestError(KVMapError):
    """A request that cannot be answered as it stands; the engine itself is well."""


class Abandoned(Exception):  # noqa: N818 - nothing went wrong
    """Nobody waits for the answer any more; it ended before its first token."""


@dataclass(frozen=True)
class Options:
    """How to answer one prompt.

    Attributes:
        max_new_tokens: Most tokens to generate, at least 1.
        temperature: 0 is greedy; above 0 the logits are divided by it before drawing.
        top_p: Draw from the likeliest tokens that together have this probability, in (0, 1].
        top_k: Draw from so many likeliest tokens; 0 for all.
        seed: Of the noise; with a seed, speculation and block size never change the tokens.
        stop: Strings that end the answer; the text ends before the first of them.
        stop_token_ids: Tokens that end the answer as an end token does.
        min_tokens: No end token and no stop string ends the answer before so many tokens.
        ignore_eos: Go on after the model's end token.
        logprobs: None for none, 0 for the log-probability of each generated token, n for those of
            the n likeliest tokens beside it, at most 20.
        mode: ``mapped``, ``target`` (its own prefill), ``source`` (the small model alone), or None
            for the engine's own.
        reuse: Whether caches of earlier requests may be read and this one's kept.

    Raises:
        RequestError: A value outside its range; the sentence names it.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    mode: Mode | None = None
    reuse: bool = True

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        checks = (
            ("max_new_tokens", self.max_new_tokens >= 1, "1 or more"),
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_new_tokens, "0 to max_new_tokens"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= MAX_TOP, f"0 to {MAX_TOP}"),
            ("mode", self.mode in (None, *MODES), "one of " + ", ".join(MODES)),
            ("stop", all(self.stop), "strings of at least one character"),
            ("seed", -(2**63) <= self.seed < 2**63, "a 64-bit integer"),
        )
        for name, fine, wanted in checks:
            if not fine:
                raise RequestError(f"{name}={getattr(self, name)} must be {wanted}")
