"""Handoff over turns, measured: drift per turn with intervals, and how fast it grows."""

from collections.abc import Sequence

import numpy as np
import torch

from kvmap.evaluation.handoff import Conversation, ConversationScore, Mode
from kvmap.evaluation.measure import blocks, decided_by
from kvmap.evaluation.models import Models, NamedMapper
from kvmap.evaluation.passages import Passage, fingerprint
from kvmap.evaluation.progress import Progress
from kvmap.evaluation.result import Handoff, HandoffTurn
from kvmap.evaluation.settings import Settings
from kvmap.evaluation.statistics import Array, Estimate, bootstrap
from kvmap.evaluation.units import Unit, Units

MODES: tuple[Mode, ...] = ("new tokens", "everything")


class Handoffs:
    """Plays conversations in every mode.

    Args:
        models: The pair.
        passages: Texts to cut into turns.
        settings: Sizes and seed.
        mapper: From source to target.
        reverse: From target to source, None for none.
        repair: r, of what is received in a turn.
        units: Where finished work lies.
        progress: Told of every unit.
    """

    def __init__(
        self,
        models: Models,
        passages: Sequence[Passage],
        settings: Settings,
        mapper: NamedMapper,
        reverse: NamedMapper | None,
        repair: int,
        units: Units,
        progress: Progress | None = None,
    ) -> None:
        self.models, self.settings, self.repair = models, settings, repair
        self.passages = passages[: settings.sizes.conversations]
        self.mapper, self.reverse = mapper, reverse
        self.units, self.progress = units, progress

    def measure(self, mode: Mode, reverse_export: str) -> Handoff:
        """Drift per turn in one mode.

        Args:
            mode: What is mapped at each turn.
            reverse_export: How the reverse mapper is called in the result.
        """
        scores = self._scores(mode)
        mapped, native = (
            np.array([getattr(score, kind) for score in scores]) for kind in ("mapped", "native")
        )
        received = scores[0].received
        turns = [
            HandoffTurn(
                turn=turn + 1,
                speaker="source" if turn % 2 else "target",
                received=received[turn],
                mapped_nll=self._mean(mapped[:, turn]),
                native_nll=self._mean(native[:, turn]),
                drift=self._mean(mapped[:, turn] - native[:, turn]),
            )
            for turn in range(mapped.shape[1])
        ]
        sizes, drift = self.settings.sizes, mapped - native
        return Handoff(
            mode=mode,
            reverse=reverse_export,
            repair=self.repair,
            conversations=len(scores),
            turn_tokens=sizes.turn_tokens,
            turns=turns,
            target_slope=self._slope(drift, 0),
            source_slope=self._slope(drift, 1)
            if self.reverse is not None and drift.shape[1] > 3
            else None,
        )

    def _scores(self, mode: Mode) -> list[ConversationScore]:
        sizes, found = self.settings.sizes, []
        for start, stop in blocks(len(self.passages), sizes.block):
            part = self.passages[start:stop]
            unit = Unit(
                f"handoff {mode} {start}",
                decided_by(self.models.pair)
                | {
                    "task": ["handoff", mode, self.repair, sizes.turns, sizes.turn_tokens],
                    "mappers": [self.mapper.key, self.reverse.key if self.reverse else None],
                    "passages": fingerprint(part),
                },
            )
            scores = self.units.load(unit, ConversationScore)
            if scores is None:
                reverse = self.reverse.mapper if self.reverse else None
                conversation = Conversation(
                    self.models, self.mapper.mapper, reverse, self.repair, mode, sizes.turn_tokens
                )
                ids = torch.stack([passage.ids[: sizes.conversation] for passage in part])
                scores = conversation.play(ids)
                self.units.store(unit, scores)
            found += scores
            if self.progress is not None:
                self.progress.step(f"handoff: {mode}")
        return found

    def _mean(self, column: Array) -> Estimate:
        sums = np.stack([column, np.ones_like(column)], axis=1)
        return self._estimate(sums)

    def _slope(self, drift: Array, first: int) -> Estimate:
        """Least-squares growth per turn of every other turn's drift."""
        turns = np.arange(first, drift.shape[1], 2, dtype=np.float64)
        at = turns - turns.mean()
        growth = drift[:, first::2] @ at / max(at @ at, 1.0)
        return self._estimate(np.stack([growth, np.ones_like(growth)], axis=1))

    def _estimate(self, sums: Array) -> Estimate:
        settings = self.settings
        found = bootstrap(sums, lambda s: s[..., 0] / s[..., 1], settings.seed, settings.resamples)
        if found is None:
            raise ValueError("a mean of finite numbers is finite; a model gave NaN")
        return found
