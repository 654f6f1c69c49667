"""What tasks ask, and what their scores are, against the plainest computation."""

from pathlib import Path

import pytest
import torch
from evaluating import Noise, corpus, named, tokens
from torch import Tensor

from kvmap.corpora.embedded import Embedded
from kvmap.errors import KVMapError
from kvmap.evaluation.answering import Answering
from kvmap.evaluation.arms import Arm
from kvmap.evaluation.distractors import distractors
from kvmap.evaluation.models import Models
from kvmap.evaluation.passages import Passage, fingerprint, passages, with_choices
from kvmap.evaluation.prompts import Item, Prompt
from kvmap.evaluation.tasks.base import PassageItem
from kvmap.evaluation.tasks.choices import Choices, ChoiceScore
from kvmap.evaluation.tasks.continuation import Continuation
from kvmap.evaluation.tasks.greedy import Greedy
from kvmap.evaluation.tasks.lookups import Lookups
from kvmap.pair import ModelPair
from kvmap.tiny.lookup_tokens import LookupTokens

PROMPT = 20
ARMS = [Arm("target"), Arm("source"), Arm("exact", 4), Arm("mapped", 4, mapper="Noise")]


@pytest.fixture
def models(random_pair: ModelPair) -> Models:
    return Models(random_pair)


@pytest.fixture
def given(models: Models) -> PassageItem:
    ids = tokens(0, 32)
    asked = tuple(LookupTokens(at, at - 2, (5, 6, 7, 8), 2) for at in (12, 18, 30))
    four = tuple(tokens(seed, 6) for seed in (1, 2, 3))
    passage = Passage(ids, asked, (*four, ids[PROMPT : PROMPT + 6]), 3)
    tasks = [Continuation(PROMPT, 8), Lookups()]
    scored = torch.cat([task.scored(passage) for task in tasks]).unique()
    prompts = [Prompt(models, text, scored) for text in (ids, tokens(9, 32))]
    return PassageItem(passage, Item(*prompts))


def answering(models: Models, arm: Arm) -> Answering:
    noise = named(Noise(models.pair.source.shape, models.pair.target.shape))
    return Answering(models, arm, noise if arm.mapper else None)


def own(models: Models, arm: Arm, ids: Tensor) -> Tensor:
    """Log-probabilities of the answering model that reads everything itself."""
    logits = models.of(arm.answerer)(ids[None]).logits[0, :, : models.vocabulary]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("arm", ARMS[:3], ids=lambda arm: arm.name)
def test_continuation_is_the_loss_of_each_token(
    models: Models, given: PassageItem, arm: Arm
) -> None:
    score = Continuation(PROMPT, 8).measure(answering(models, arm), given)
    ids = given.passage.ids
    said = own(models, arm, ids)[PROMPT - 1 : PROMPT + 7]
    losses = -said.gather(1, ids[PROMPT : PROMPT + 8, None])[:, 0]
    assert score.nll == pytest.approx(losses.tolist(), abs=1e-4)
    target = own(models, Arm("target"), ids)[PROMPT - 1 : PROMPT + 7]
    divergence = torch.nn.functional.kl_div(said, target, log_target=True, reduction="none").sum(1)
    assert score.kl == pytest.approx(divergence.tolist(), abs=1e-4)
    assert score.same_top == (said.argmax(1) == target.argmax(1)).tolist()


@pytest.mark.parametrize("arm", ARMS[:3], ids=lambda arm: arm.name)
def test_choices_are_judged_by_their_whole_likelihood(
    models: Models, given: PassageItem, arm: Arm
) -> None:
    score = Choices(PROMPT).measure(answering(models, arm), given)
    for nll, choice in zip(score.nll, given.passage.choices, strict=True):
        ids = torch.cat([given.passage.ids[:PROMPT], choice])
        said = own(models, arm, ids)[PROMPT - 1 : -1]
        assert nll == pytest.approx(-said.gather(1, choice[:, None]).sum().item(), abs=1e-3)


def test_a_choice_is_right_when_the_right_one_costs_least() -> None:
    assert ChoiceScore([2.0, 1.0, 3.0, 4.0], 1).hit
    assert not ChoiceScore([2.0, 1.0, 3.0, 4.0], 0).hit


@pytest.mark.parametrize("arm", ARMS[:3], ids=lambda arm: arm.name)
def test_lookups_take_the_likeliest_of_the_four(
    models: Models, given: PassageItem, arm: Arm
) -> None:
    score = Lookups().measure(answering(models, arm), given)
    for hit, asked in zip(score.hits, given.passage.lookups, strict=True):
        said = own(models, arm, given.passage.ids[: asked.position])[-1]
        assert hit == (said[list(asked.choices)].argmax().item() == asked.right)
    assert score.distances == [asked.distance for asked in given.passage.lookups]


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_greedy_finds_what_decoding_token_by_token_finds(
    models: Models, given: PassageItem, arm: Arm
) -> None:
    right = torch.tensor(Greedy(PROMPT, 10).measure(answering(models, arm), given).tokens)
    nearly = torch.cat([right[:6], right[6:] + 1])
    for guess in (None, tokens(4, 10), right, nearly):
        given.item.prompt.written = guess
        score = Greedy(PROMPT, 10).measure(answering(models, arm), given)
        cache, logits = answering(models, arm).opened(given.item, PROMPT)
        found: list[int] = []
        while len(found) < 10:
            found.append(int(logits.argmax()))
            last = torch.tensor(found[-1:])
            logits = answering(models, arm).extend(cache, last, PROMPT + len(found) - 1)[-1]
        assert score.tokens == found


def test_wrong_continuations_follow_what_the_prompt_ends_with() -> None:
    table = torch.randint(100, 200, (9, 60), generator=torch.Generator().manual_seed(0))
    seam = torch.arange(4)
    table[2, 26:30] = seam
    for other, at in ((4, 20), (6, 33), (8, 40)):
        table[other, at : at + 4] = seam
    wrong = distractors(table, 2, prompt=30, tokens=5)
    assert [each.tolist() for each in wrong] == [
        table[other, at + 4 : at + 9].tolist() for other, at in ((4, 20), (6, 33), (8, 40))
    ]


def test_no_wrong_continuation_is_the_right_one_or_another_wrong_one() -> None:
    table = torch.randint(0, 3, (6, 40), generator=torch.Generator().manual_seed(1))
    for index in range(6):
        wrong = distractors(table, index, prompt=20, tokens=5)
        right = table[index, 20:25]
        assert len({tuple(each.tolist()) for each in (*wrong, right)}) == 4


def test_texts_that_are_all_alike_are_one_sentence() -> None:
    with pytest.raises(KVMapError, match="so much alike that passage 2"):
        distractors(torch.zeros(9, 40, dtype=torch.long), 2, prompt=20, tokens=5)
    with pytest.raises(KVMapError, match="more than 3 passages"):
        distractors(torch.zeros(3, 40, dtype=torch.long), 2, prompt=20, tokens=5)


def test_the_right_choice_stands_at_every_place_about_as_often() -> None:
    table = torch.randint(0, 9, (80, 40), generator=torch.Generator().manual_seed(2))
    found = with_choices([Passage(ids) for ids in table], 20, 5, seed=0)
    places = [passage.right for passage in found]
    assert all(10 <= places.count(place) <= 30 for place in range(4))
    for passage in found:
        assert torch.equal(passage.choices[passage.right], passage.ids[20:25])
    again = with_choices([Passage(ids) for ids in table], 20, 5, seed=1)
    assert fingerprint(found) != fingerprint(again)


def test_passages_of_a_file_have_one_length_and_no_questions(
    random_pair: ModelPair, tmp_path: Path
) -> None:
    found = passages(corpus(tmp_path), random_pair.target.tokenizer, "test", 32, 7)
    assert [len(passage.ids) for passage in found] == [32] * 7
    assert not any(passage.lookups for passage in found)
    others = passages(corpus(tmp_path), random_pair.target.tokenizer, "development", 32, 7)
    assert fingerprint(found) != fingerprint(others)


@pytest.mark.parametrize(("length", "count"), [(5000, 2), (32, 10_000)])
def test_too_little_text_is_one_sentence(
    random_pair: ModelPair, tmp_path: Path, length: int, count: int
) -> None:
    with pytest.raises(KVMapError, match=r"the test set of file has .*sizes\.passages"):
        passages(corpus(tmp_path), random_pair.target.tokenizer, "test", length, count)


def test_texts_too_short_for_lookups_are_one_sentence_not_an_endless_search() -> None:
    from kvmap.loading import load_tokenizer

    tokenizer = load_tokenizer("embedded:target", None)
    with pytest.raises(KVMapError, match="hardly any look-up that is 50 tokens"):
        passages(Embedded(60), tokenizer, "test", 60, 2, lookups=5, distance=50)


def test_lookups_of_the_embedded_corpus_are_far_and_inside() -> None:
    from kvmap.loading import load_tokenizer

    tokenizer = load_tokenizer("embedded:target", None)
    found = passages(Embedded(300), tokenizer, "test", 300, 2, lookups=20, distance=60)
    asked = [(passage, each) for passage in found for each in passage.lookups]
    assert len(asked) >= 20
    for passage, each in asked:
        assert each.distance >= 60
        assert passage.ids[each.position] == each.choices[each.right]
        assert passage.ids[each.position - each.distance] == each.choices[each.right]
