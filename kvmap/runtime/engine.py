"""The engine: prefill or mapping, then draft, verify, commit, roll back until the answer ends."""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from transformers import PreTrainedTokenizerBase

from kvmap.errors import KVMapError
from kvmap.loading import torch_dtype
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair
from kvmap.runtime.answer import Answer, Piece, Stats
from kvmap.runtime.commit import Commit
from kvmap.runtime.draft import Draft
from kvmap.runtime.memory import Memory
from kvmap.runtime.options import Mode, Options, RequestError
from kvmap.runtime.prefill import MappedPrefill, Reading, Wanted, always
from kvmap.runtime.runner import Runner
from kvmap.runtime.sampling import Chooser
from kvmap.runtime.session import Caches, SessionKey
from kvmap.runtime.settings import Repair, Settings
from kvmap.runtime.transfer import Link
from kvmap.runtime.verify import Verifier, log_probabilities

HOST = torch.device("cpu")


class Stream:
    """One answer as it grows: an iterator of pieces.

    Attributes:
        stats: What it takes; complete after the last piece.
    """

    def __init__(self, pieces: Generator[Piece, None, None], stats: Stats) -> None:
        self._pieces, self.stats = pieces, stats

    def __iter__(self) -> Iterator[Piece]:
        """The pieces."""
        return self

    def __next__(self) -> Piece:
        """The next round's piece; the first is the first token."""
        return next(self._pieces)

    def close(self) -> None:
        """Give up: caches are freed and no session is kept."""
        self._pieces.close()


class Engine:
    """Answers prompts with the target, whose cache comes from the source through a mapper.

    One request at a time, from one thread.

    Args:
        pair: The models; both are loaded, each on its device.
        mapper: A fitted mapper of this pair; None for an engine that answers natively.
        settings: How it runs.

    Raises:
        KVMapError: A model cannot be loaded, or the mode needs a mapper and there is none.
    """

    def __init__(
        self, pair: ModelPair, mapper: Mapper | None, settings: Settings | None = None
    ) -> None:
        self.pair, self.settings = pair, settings or Settings()
        self.mode: Mode = self.settings.mode
        if mapper is None and self.mode == "mapped":
            raise KVMapError(
                "mode=mapped needs a mapper; give one, or choose mode=target or source"
            )
        self.tokenizer: PreTrainedTokenizerBase = pair.target.tokenizer
        self.source, self.target = (
            Runner(side, len(self.tokenizer), self.settings.compile)
            for side in (pair.source, pair.target)
        )
        self.link = Link(self.source.device, self.target.device)
        self.memory = Memory(self.source, self.target, self.settings, self._key)
        self.use(mapper)

    def use(self, mapper: Mapper | None, repair: Repair | None = None) -> None:
        """Answer through this mapper from now on; conversations at rest are dropped.

        Args:
            mapper: A fitted mapper of the pair; None to answer natively.
            repair: At this repair, if it is another than before.
        """
        self.mapper = mapper
        if mapper is not None:
            dtype = torch_dtype(self.settings.mapper_dtype, self.pair.target.config)
            self.mapper = mapper.eval().to(self.target.device, dtype)
        if repair is not None:
            self.settings = replace(self.settings, repair=repair)
        self.forget()

    @property
    def limit(self) -> int:
        """Most positions: prompt and new tokens."""
        sides = (self.pair.source, self.pair.target)
        return min(side.config.max_position_embeddings for side in sides)

    @property
    def live_bytes(self) -> int:
        """Memory of all caches alive: the running request's and the conversations at rest."""
        return self.memory.bytes

    def forget(self) -> None:
        """Drop all conversations at rest."""
        self.memory.forget()

    def self_test(self) -> None:
        """Check that copies between the devices are faithful, and choose a way that is.

        Raises:
            KVMapError: None is.
        """
        self.link.self_test()

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        return list(self.tokenizer(text)["input_ids"])

    def generate(self, prompt_ids: Sequence[int], options: Options | None = None) -> Answer:
        """Answer one prompt.

        Raises:
            RequestError: What :meth:`stream` refuses.
        """
        stream = self.stream(prompt_ids, options)
        pieces = list(stream)
        reason = pieces[-1].finish_reason
        assert reason is not None  # the last piece always has one
        return Answer(
            tokens=tuple(chain.from_iterable(piece.tokens for piece in pieces)),
            text="".join(piece.text for piece in pieces),
            finish_reason=reason,
            logprobs=tuple(chain.from_iterable(piece.logprobs for piece in pieces)),
            stats=stream.stats,
        )

    def stream(
        self,
        prompt_ids: Sequence[int],
        options: Options | None = None,
        wanted: Wanted = always,
    ) -> Stream:
        """Answer one prompt piece by piece; the work is done as the pieces are asked for.

        Args:
            prompt_ids: Token ids of the prompt.
            options: What to generate.
            wanted: Asked before every chunk of the prefill whether somebody still waits; when
                nobody does, the first piece raises ``Abandoned`` and the caches are freed.

        Raises:
            RequestError: The prompt is empty, too long for the models, or holds ids that the
                tokenizer does not know; or the mode needs a mapper and there is none.
        """
        options, prompt = options or Options(), list(prompt_ids)
        mode = options.mode or self.mode
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token")
        if len(prompt) + options.max_new_tokens > self.limit:
            raise RequestError(
                f"a prompt of {len(prompt)} tokens and {options.max_new_tokens} new ones exceed "
                f"the {self.limit} positions of the models; shorten the prompt or ask for fewer"
            )
        if unknown := [i for i in prompt if not 0 <= i < len(self.tokenizer)]:
            raise RequestError(
                f"token id {unknown[0]} is none of the {len(self.tokenizer)} of the tokenizer"
            )
        if mode == "mapped" and self.mapper is None:
            raise RequestError(
                "mode=mapped needs a mapper, and none is loaded; ask for mode=target"
            )
        stats = Stats(mode, prompt=len(prompt))
        return Stream(self._answer(prompt, options, mode, stats, wanted), stats)

    # The answer, from above to below.

    @torch.no_grad()
    def _answer(
        self, prompt: list[int], options: Options, mode: Mode, stats: Stats, wanted: Wanted
    ) -> Generator[Piece, None, None]:
        accepted = time.perf_counter()
        ends = self._ends(options)
        commit = Commit(options, ends, self.tokenizer)
        caches = self.memory.begin(prompt, options, mode, stats)
        delivered = False
        try:
            chooser = Chooser(options, ends, len(prompt))
            logits = self._prefill(prompt, caches, mode, stats, wanted)
            tokens = chooser.choose(logits, len(prompt)).tolist()
            stats.ttft = time.perf_counter() - accepted
            verifier = self._verifier(caches, chooser, mode)
            draft = self._draft(caches, chooser, mode)
            self.settings.schedule.restart()
            while not delivered:
                piece = commit(tokens, log_probabilities(logits, tokens, options.logprobs))
                committed = prompt + commit.tokens
                with stats.stages.stage("roll back", HOST):
                    for party in (verifier, draft):
                        if party is not None:
                            party.forget_after(len(committed) - 1)
                stats.generated = len(commit.tokens)
                stats.latency = time.perf_counter() - accepted
                yield piece
                delivered = piece.finish_reason is not None
                if not delivered:
                    tokens, logits = self._round(committed, options, draft, verifier, stats)
        finally:
            if not delivered:
                self.memory.give_up(mode, prompt, caches)
            elif options.reuse:
                self.memory.keep(mode, committed[:-1], caches)

    def _round(
        self,
        committed: list[int],
        options: Options,
        draft: Draft | None,
        verifier: Verifier,
        stats: Stats,
    ) -> tuple[list[int], torch.Tensor]:
        """Draft and verify: the target's next tokens and the logits that decided them."""
        schedule = self.settings.schedule
        left = options.max_new_tokens - stats.generated
        size = min(schedule.next(), left - 1) if draft is not None else 0
        proposals = None
        before = stats.stages.seconds if draft is not None else {}
        if draft is not None and size:
            with stats.stages.stage("draft", self.source.device):
                proposals = draft.propose(committed, size)
        with stats.stages.stage("verify", verifier.device):
            verdict = verifier.verify(committed[-1], proposals)
        if draft is not None:
            proposed = 0 if proposals is None else len(proposals)
            stats.blocks.append(proposed)
            stats.proposed += proposed
            stats.accepted += verdict.accepted
            stats.corrected += verdict.accepted < proposed
            stats.bonus += 0 < proposed == verdict.accepted
            after = stats.stages.seconds
            schedule.observe(
                proposed,
                verdict.accepted,
                *(after.get(name, 0.0) - before.get(name, 0.0) for name in ("draft", "verify")),
            )
        return verdict.tokens, verdict.logits

    def _prefill(
        self, prompt: list[int], caches: Caches, mode: Mode, stats: Stats, wanted: Wanted
    ) -> torch.Tensor:
        if mode == "mapped":
            assert self.mapper is not None
            assert caches.source is not None
            assert caches.target is not None
            prefill = MappedPrefill(
                self.source, self.target, self.mapper, self.link, self.settings, wanted
            )
            return prefill(prompt, caches.source, caches.target, stats)
        alone = mode == "source"
        runner, buffer = self.source if alone else self.target, caches.of(source=alone)
        assert buffer is not None
        ids = torch.tensor(prompt, device=runner.device)
        return Reading(runner, self.settings.chunk, wanted)(ids, buffer, stats)

    def _verifier(self, caches: Caches, chooser: Chooser, mode: Mode) -> Verifier:
        alone = mode == "source"
        buffer = caches.of(source=alone)
        assert buffer is not None
        return Verifier(self.source if alone else self.target, buffer, chooser)

    def _draft(self, caches: Caches, chooser: Chooser, mode: Mode) -> Draft | None:
        if mode != "mapped" or not self.settings.schedule.most or caches.source is None:
            return None
        return Draft(self.source, caches.source, chooser, self.settings.confidence)

    def _ends(self, options: Options) -> frozenset[int]:
        """Tokens that end an answer."""
        configured = self.target.model.generation_config.eos_token_id
        own = configured if isinstance(configured, list) else [configured]
        kept = [] if options.ignore_eos else [token for token in own if token is not None]
        return frozenset([*kept, *options.stop_token_ids])

    def _key(self, mode: Mode) -> SessionKey:
        """What decides the KV of tokens that are answered in a mode."""
        source, target = (side.identity() for side in (self.pair.source, self.pair.target))
        mapped = mode == "mapped" and self.mapper is not None
        exported = self.mapper.exported if mapped and self.mapper is not None else None
        return SessionKey(
            mode=mode,
            source=source.revision,
            target=target.revision,
            mapper=exported.weights_sha256 if exported else "",
            repair=str(self.settings.repair) if mapped else "",
            dtypes=f"{source.dtype} {target.dtype} {self.settings.mapper_dtype}",
        )
