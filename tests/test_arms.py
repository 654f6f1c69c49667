"""Arms against what they are defined to be, each computed in the plainest way."""

import itertools
from dataclasses import replace

import pytest
import torch
from evaluating import Noise, Same, item, named, tokens
from torch import Tensor

from kvmap import cache as caches
from kvmap.errors import KVMapError
from kvmap.evaluation.answering import Answering, Ask
from kvmap.evaluation.arms import Arm
from kvmap.evaluation.branches import Branch, run
from kvmap.evaluation.models import Models, NamedMapper
from kvmap.evaluation.prompts import Item, Prompt, prepared
from kvmap.pair import ModelPair
from kvmap.runtime.mapped import map_rotated

END, MORE = 20, 6


@pytest.fixture
def models(random_pair: ModelPair) -> Models:
    return Models(random_pair)


@pytest.fixture
def same(random_pair: ModelPair) -> Models:
    """A pair whose source is its target."""
    return Models(ModelPair("same", random_pair.target.spec, random_pair.target.spec))


@pytest.fixture
def noise(random_pair: ModelPair) -> NamedMapper:
    return named(Noise(random_pair.source.shape, random_pair.target.shape))


def plain(models: Models, ids: Tensor) -> Tensor:
    """The target's logits after each token, read at once without any cache."""
    return models.target(ids[None]).logits[0, :, : models.vocabulary]


def said(answering: Answering, given: Item, end: int = END, more: int = MORE) -> Tensor:
    """Logits along the text after a prompt that ends inside it."""
    return answering.logits(given, [Ask(end, [given.prompt.ids[end : end + more]])])[0][0]


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=2e-4)


@pytest.mark.parametrize(
    ("repair", "prompt", "tail"), [(0, 9, 1), (1, 9, 1), (4, 9, 4), (9, 9, 9), (50, 9, 9)]
)
def test_effective_repair_is_between_one_and_the_prompt(
    repair: int, prompt: int, tail: int
) -> None:
    arm = Arm("mapped", repair)
    assert arm.repaired_tail(prompt) == tail
    assert arm.kept(prompt) == prompt - tail
    assert Arm("window", repair).kept(prompt) == 0
    assert arm.repaired_share(prompt) == tail / prompt


def test_prefixes_count_as_repaired_and_never_overlap_the_tail() -> None:
    assert Arm("mapped", 3, 2).repaired_share(10) == 0.5
    assert Arm("mapped", 9, 4).repaired_share(10) == 1.0
    assert Arm("window", 3, 2).kept(10) == 2
    assert Arm("window", 9, 4).kept(10) == 1
    assert Arm("target").repaired_share(10) == 1.0


def test_names_say_what_is_repaired_and_tell_arms_apart() -> None:
    arms = [
        Arm(role, repair, prefix, exact=exact)
        for role, repair, prefix, exact in itertools.product(
            ("mapped", "window", "mismatched", "exact"), (8, 32), (0, 4), ("", "keys")
        )
    ]
    assert len({arm.name for arm in arms}) == len(arms)
    assert Arm("mapped").name == "mapped"
    assert Arm("mapped", 32, 4).name == "mapped + repair 32 + prefix 4"
    assert Arm("target", 32).name == "target"


@pytest.mark.parametrize("what", ["repair", "prefix"])
def test_a_negative_repair_is_refused(what: str) -> None:
    with pytest.raises(KVMapError, match=f"{what}=-1"):
        Arm("mapped", **{what: -1})


@pytest.mark.parametrize("repair", [0, 5, 100])
@pytest.mark.parametrize("prefix", [0, 3])
def test_exact_kv_through_the_mapped_path_is_the_target(
    models: Models, repair: int, prefix: int
) -> None:
    given = item(models)
    wanted = plain(models, given.prompt.ids)[END - 1 : END + MORE - 1]
    assert close(said(Answering(models, Arm("exact", repair, prefix)), given), wanted)


@pytest.mark.parametrize("role", ["mapped", "mismatched", "window"])
def test_repairing_the_whole_prompt_is_the_target_whatever_the_mapper(
    models: Models, noise: NamedMapper, role: str
) -> None:
    given = item(models)
    wanted = plain(models, given.prompt.ids)[END - 1 : END + MORE - 1]
    answering = Answering(models, Arm(role, END, mapper=noise.key), noise)
    assert close(said(answering, given), wanted)


@pytest.mark.parametrize("repair", [0, 5])
def test_an_identity_mapper_makes_the_mapped_arm_the_target(same: Models, repair: int) -> None:
    mapper = named(Same(same.pair.source.shape, same.pair.target.shape))
    given = item(same)
    wanted = plain(same, given.prompt.ids)[END - 1 : END + MORE - 1]
    assert close(said(Answering(same, Arm("mapped", repair), mapper), given), wanted)


@pytest.mark.parametrize("role", ["mapped", "mismatched"])
def test_an_arm_reads_its_own_or_the_other_prompts_cache(
    models: Models, noise: NamedMapper, role: str
) -> None:
    given = item(models)
    start = END - 5
    read = given.other if role == "mismatched" else given.prompt
    source = caches.prefill(models.source, read.ids[None, :])
    kv = map_rotated(models.pair, noise.mapper, source, torch.arange(len(read.ids)))
    cache = caches.write(kv.select_tokens(slice(0, start)))
    text = given.prompt.ids[start : END + MORE - 1]
    positions = torch.arange(start, END + MORE - 1)
    wanted = caches.forward(models.target, text[None], cache, positions)[0, 4:]
    found = said(Answering(models, Arm(role, 5, mapper=noise.key), noise), given)
    assert close(found, wanted[:, : models.vocabulary])


def test_mismatched_differs_from_mapped(same: Models) -> None:
    mapper = named(Same(same.pair.source.shape, same.pair.target.shape))
    given = item(same)
    own, other = (
        said(Answering(same, Arm(role, 5), mapper), given) for role in ("mapped", "mismatched")
    )
    assert not close(own, other)


@pytest.mark.parametrize("prefix", [0, 3])
def test_a_window_sees_its_tokens_at_their_own_positions(models: Models, prefix: int) -> None:
    given = item(models)
    at = torch.cat([torch.arange(prefix), torch.arange(END - 5, END + MORE - 1)])
    seen = given.prompt.ids[at]
    wanted = caches.forward(models.target, seen[None], caches.empty(), at)[0, prefix + 4 :]
    found = said(Answering(models, Arm("window", 5, prefix)), given)
    assert close(found, wanted[:, : models.vocabulary])


def test_prefixes_and_exact_parts_are_the_targets_own(models: Models, noise: NamedMapper) -> None:
    given = item(models)
    exact, shared = given.prompt.reading("target").kv, given.prompt.mapped(noise)
    mapped = type(shared)(*(part.clone() for part in shared))
    found = prepared(Arm("mapped", 5, 3), given, noise)
    assert torch.equal(found.keys[..., :3, :], exact.keys[..., :3, :])
    assert torch.equal(found.values[..., 3:, :], mapped.values[..., 3:, :])
    found = prepared(Arm("mapped", 5, exact="keys"), given, noise)
    assert torch.equal(found.keys, exact.keys)
    assert torch.equal(found.values, mapped.values)
    found = prepared(Arm("mapped", 5, exact="layer 2"), given, noise)
    for layer in range(models.pair.target.shape.layers):
        right = exact if layer == 2 else mapped
        assert torch.equal(found.keys[layer], right.keys[layer])
        assert torch.equal(found.values[layer], right.values[layer])
    for now, before in zip(given.prompt.mapped(noise), mapped, strict=True):
        assert torch.equal(now, before), "shared KV is never changed"


def test_a_prompt_inside_a_text_reads_what_it_would_alone(
    models: Models, noise: NamedMapper
) -> None:
    # Deterministic in the number of tokens, this noise is not token by token; an affine map is.
    mapper = noise.mapper
    mapper.forward = lambda source: type(source)(  # type: ignore[method-assign]
        *(part[[0, 1, 2, 0]] * 0.7 + 0.1 for part in source)
    )
    given = item(models)
    alone = Item(*(Prompt(models, each.ids[:END]) for each in given))
    answering = Answering(models, Arm("mapped", 4, mapper=noise.key), noise)
    continuation = given.prompt.ids[END : END + MORE]
    within, by_itself = (
        answering.logits(each, [Ask(END, [continuation])])[0][0] for each in (given, alone)
    )
    assert close(within, by_itself)


def test_many_asks_at_once_are_each_as_if_alone(models: Models, noise: NamedMapper) -> None:
    given = item(models)
    asks = [Ask(end, [tokens(end, n) for n in (1, 4, 6)]) for end in (9, 14, 20)]
    answering = Answering(models, Arm("mapped", 5, mapper=noise.key), noise)
    for ask, together in zip(asks, answering.logits(given, asks), strict=True):
        for continuation, found in zip(ask.continuations, together, strict=True):
            alone = answering.logits(given, [Ask(ask.end, [continuation])])[0][0]
            assert close(found, alone)
            assert found.shape == (len(continuation), models.vocabulary)


def test_a_branch_sees_its_ancestors_and_nothing_beside(models: Models) -> None:
    ids = tokens(3, 12)
    kv = caches.prefill(models.target, ids[None])
    stem = Branch(tokens(4, 3), 8, 8)
    twigs = [replace(Branch(tokens(seed, 2), 11, 8), parent=0, wanted=2) for seed in (5, 6)]
    leaf = Branch(tokens(7, 2), 13, 8, parent=2)
    found = run(models.target, kv, [stem, *twigs, leaf])
    for branch, line in ((1, [stem, twigs[0]]), (2, [stem, twigs[1]]), (3, [stem, twigs[1], leaf])):
        whole = torch.cat([ids[:8], *(each.ids for each in line)])
        wanted = models.target(whole[None]).logits[0, -line[-1].wanted :]
        assert close(found[branch], wanted)


def test_a_branch_beyond_its_prefix_is_refused(models: Models) -> None:
    with pytest.raises(ValueError, match="shorter"):
        run(models.target, None, [Branch(tokens(0, 2), 3, 3)])
