"""Conversations in turns: with nothing lost in between, nothing drifts."""

import pytest
import torch
from evaluating import Noise, Same, tokens

from kvmap.evaluation.handoff import Conversation, ConversationScore
from kvmap.evaluation.models import Models
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair

TURN, TURNS = 6, 5


@pytest.fixture
def models(random_pair: ModelPair) -> Models:
    return Models(random_pair)


@pytest.fixture
def same(random_pair: ModelPair) -> Models:
    return Models(ModelPair("same", random_pair.target.spec, random_pair.target.spec))


def play(
    models: Models, mapper: Mapper, reverse: Mapper | None, repair: int, mode: str
) -> list[ConversationScore]:
    ids = torch.stack([tokens(seed, TURN * TURNS) for seed in (0, 1, 2)])
    return Conversation(models, mapper, reverse, repair, mode, TURN).play(ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["new tokens", "everything"])
@pytest.mark.parametrize("repair", [0, 3])
@pytest.mark.parametrize("back", [True, False])
def test_lossless_mappers_do_not_drift(same: Models, mode: str, repair: int, back: bool) -> None:
    mapper = Same(same.pair.source.shape, same.pair.target.shape)
    for score in play(same, mapper, mapper if back else None, repair, mode):
        assert score.mapped == pytest.approx(score.native, abs=1e-4)


@pytest.mark.parametrize("back", [True, False])
def test_repairing_all_that_is_received_is_reading_it(models: Models, back: bool) -> None:
    # Within a conversation P counts the new tokens of a turn, at most two turns' worth.
    forth = Noise(models.pair.source.shape, models.pair.target.shape)
    reverse = Noise(models.pair.target.shape, models.pair.source.shape) if back else None
    for score in play(models, forth, reverse, 2 * TURN, "new tokens"):
        assert score.mapped == pytest.approx(score.native, abs=1e-4)


def test_what_the_other_says_is_received_once_or_again_and_again(models: Models) -> None:
    forth = Noise(models.pair.source.shape, models.pair.target.shape)
    back = Noise(models.pair.target.shape, models.pair.source.shape)
    once = play(models, forth, back, 2, "new tokens")[0]
    again = play(models, forth, back, 2, "everything")[0]
    one_way = play(models, forth, None, 2, "new tokens")[0]
    assert once.received == [TURN] * (TURNS - 1)
    assert again.received == [TURN * turn for turn in range(1, TURNS)]
    assert one_way.received == [TURN, 0, TURN, 0]


def test_without_a_reverse_mapper_only_the_target_drifts(models: Models) -> None:
    forth = Noise(models.pair.source.shape, models.pair.target.shape)
    for score in play(models, forth, None, 2, "new tokens"):
        drift = [mapped - native for mapped, native in zip(score.mapped, score.native, strict=True)]
        assert max(map(abs, drift[1::2])) < 1e-4
        assert min(map(abs, drift[0::2])) > 1e-3


def test_native_scores_are_the_models_own(models: Models) -> None:
    ids = tokens(0, TURN * TURNS)
    score = play(models, Noise(models.pair.source.shape, models.pair.target.shape), None, 2,
                 "new tokens")[0]  # fmt: skip
    for turn in range(1, TURNS):
        model = models.of("source" if turn % 2 == 0 else "target")
        said = model(ids[None]).logits[0, :, : models.vocabulary].log_softmax(-1)
        part = slice(turn * TURN, (turn + 1) * TURN)
        losses = -said[part.start - 1 : part.stop - 1].gather(1, ids[part, None])
        assert score.native[turn - 1] == pytest.approx(losses.mean().item(), abs=1e-4)
