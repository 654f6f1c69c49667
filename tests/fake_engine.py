"""An engine that follows the contract and computes nothing, so that only the server is tested."""

import hashlib
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from types import SimpleNamespace

from transformers import PreTrainedTokenizerBase

from kvmap.errors import KVMapError
from kvmap.runtime.answer import Piece, Stats, TokenLogprob
from kvmap.runtime.commit import Commit
from kvmap.runtime.options import Mode, Options, RequestError
from kvmap.runtime.prefill import Wanted, always, require

DIGEST = "d1" * 32
BYTES_PER_TOKEN = 100


class FakeStream:
    """An iterator of pieces that takes note of who calls it."""

    def __init__(
        self, engine: "FakeEngine", pieces: Generator[Piece, None, None], stats: Stats
    ) -> None:
        self._engine, self._pieces, self.stats = engine, pieces, stats

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        self._engine.note_caller()
        return next(self._pieces)

    def close(self) -> None:
        self._engine.note_caller()
        self._pieces.close()


class FakeEngine:
    """Answers with tokens that a digest of the prompt (and the seed, if it samples) decides.

    Args:
        tokenizer: The target's.
        delay: Seconds that each round takes, the first included.
        block: Tokens of a round.
        limit: Most positions.
        keep: Whether sessions are kept, which count as live.
        test_delay: Seconds that the self-test takes.
        mapped: Whether there is a mapper.
        chunks: In how many chunks a prompt is read, each taking a delay.

    Attributes:
        rounds: Rounds that were computed, over all requests.
        kept: Tokens of the kept sessions.
        fault: Raised in the next round when set.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        delay: float = 0.0,
        block: int = 3,
        limit: int = 512,
        keep: bool = False,
        test_delay: float = 0.0,
        mapped: bool = True,
        chunks: int = 1,
    ) -> None:
        self.tokenizer, self.delay, self.block, self.limit = tokenizer, delay, block, limit
        self.pair = SimpleNamespace(name="fake")
        exported = SimpleNamespace(weights_sha256=DIGEST)
        self.mapper = SimpleNamespace(exported=exported, family="ridge") if mapped else None
        self.mode: Mode = "mapped" if mapped else "target"
        self._keep, self._test_delay = keep, test_delay
        self.kept: list[list[int]] = []
        self.rounds, self.chunks, self.chunks_read = 0, chunks, 0
        self.fault: Exception | None = None
        self._running = 0  # bytes of the running request's caches
        self._thread: int | None = None

    def note_caller(self) -> None:
        """Every call must come from the thread of the first."""
        self._thread = self._thread or threading.get_ident()
        assert threading.get_ident() == self._thread, "the engine is not for two threads"

    @property
    def live_bytes(self) -> int:
        self.note_caller()
        return self._running + sum(BYTES_PER_TOKEN * len(tokens) for tokens in self.kept)

    @property
    def still_held(self) -> int:
        """``live_bytes`` for tests, which ask from a thread of their own."""
        return self._running

    def self_test(self) -> None:
        self.note_caller()
        time.sleep(self._test_delay)

    def stream(
        self,
        prompt_ids: Sequence[int],
        options: Options | None = None,
        wanted: Wanted = always,
    ) -> FakeStream:
        self.note_caller()
        options, prompt = options or Options(), list(prompt_ids)
        mode = options.mode or self.mode
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token")
        if len(prompt) + options.max_new_tokens > self.limit:
            raise RequestError("too long")
        if mode == "mapped" and self.mapper is None:
            raise RequestError("mode=mapped needs a mapper")
        assert not self._running, "one request at a time"
        stats = Stats(mode, prompt=len(prompt))
        return FakeStream(self, self._answer(prompt, options, mode, stats, wanted), stats)

    def expect(self, prompt_ids: Sequence[int], options: Options) -> str:
        """The text that a request must get."""
        commit = Commit(options, self._ends(options), self.tokenizer)
        while commit.finish_reason is None:
            commit([self.token(prompt_ids, options, len(commit.tokens))])
        return commit.text

    def token(self, prompt_ids: Sequence[int], options: Options, place: int) -> int:
        """The answer's token at a place."""
        seed = options.seed if options.temperature else "greedy"
        said = f"{list(prompt_ids)} {seed} {place}"
        value = int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "big")
        return value % len(self.tokenizer)

    def _ends(self, options: Options) -> frozenset[int]:
        own = [] if options.ignore_eos else [self.tokenizer.eos_token_id]
        return frozenset([*own, *options.stop_token_ids])

    def _answer(
        self, prompt: list[int], options: Options, mode: Mode, stats: Stats, wanted: Wanted
    ) -> Generator[Piece, None, None]:
        started = time.perf_counter()
        self._running = BYTES_PER_TOKEN * (len(prompt) + options.max_new_tokens)
        commit = Commit(options, self._ends(options), self.tokenizer)
        delivered = False
        stats.reused = max((_common(kept, prompt[:-1]) for kept in self.kept), default=0)
        fresh = len(prompt) - stats.reused
        if mode == "mapped":
            stats.repaired = min(4, fresh)
            stats.mapped = fresh - stats.repaired
        else:
            stats.prefilled = fresh
        try:
            while not delivered:
                count = self.block if commit.tokens else 1
                places = range(len(commit.tokens), len(commit.tokens) + count)
                for _ in range(1 if commit.tokens else self.chunks):
                    if not commit.tokens:
                        require(wanted)
                        self.chunks_read += 1
                    time.sleep(self.delay)
                self.rounds += 1
                if self.fault is not None:
                    fault, self.fault = self.fault, None
                    raise fault
                if len(places) > 1:
                    stats.proposed += count
                    stats.accepted += count - 1
                tokens = [self.token(prompt, options, place) for place in places]
                piece = commit(tokens, self._logprobs(tokens, options))
                stats.generated = len(commit.tokens)
                stats.latency = time.perf_counter() - started
                stats.ttft = stats.ttft or stats.latency
                stats.stages.add("verify", self.delay)
                yield piece
                delivered = piece.finish_reason is not None
        finally:
            self._running = 0
            if delivered and self._keep:
                self.kept.append(prompt + commit.tokens[:-1])

    def _logprobs(self, tokens: list[int], options: Options) -> list[TokenLogprob]:
        if options.logprobs is None:
            return []
        size = len(self.tokenizer)
        return [
            TokenLogprob(
                token,
                -0.5,
                tuple(((token + step) % size, -0.5 - step) for step in range(options.logprobs)),
            )
            for token in tokens
        ]


class BrokenEngine(FakeEngine):
    """Fails its self-test."""

    def self_test(self) -> None:
        raise KVMapError("copies between the devices are not faithful")


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
