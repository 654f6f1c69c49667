"""Noise keyed by seed and position, and the tokens chosen with it."""

import pytest
import torch
from scipy.stats import chisquare, kstest

from kvmap.runtime.noise import gumbel
from kvmap.runtime.options import Options
from kvmap.runtime.sampling import Chooser

LOGITS = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -3.0]])


def draws(options: dict[str, float], count: int = 4000, logits: torch.Tensor = LOGITS) -> list[int]:
    """Tokens drawn at many positions from one distribution."""
    chooser = Chooser(Options(**options), (), 0)  # type: ignore[arg-type]
    return chooser.choose(logits.expand(count, -1), 0).tolist()


def test_noise_is_gumbel() -> None:
    noise = gumbel(3, torch.arange(400), 50).flatten()
    assert kstest(noise.numpy(), "gumbel_r").pvalue > 1e-3
    for lag in (1, 50, 51):
        pairs = torch.stack([noise[:-lag], noise[lag:]])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.03


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    whole = gumbel(7, torch.arange(20), 30)
    assert torch.equal(gumbel(7, torch.tensor([11]), 30)[0], whole[11])
    assert torch.equal(gumbel(7, torch.arange(20), 12), whole[:, :12])
    assert not torch.equal(gumbel(8, torch.arange(20), 30), whole)
    assert gumbel(-(2**63), torch.tensor([2**40]), 30).isfinite().all()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_draws_follow_the_softmax(temperature: float) -> None:
    drawn = draws({"temperature": temperature})
    wanted = (LOGITS[0] / temperature).softmax(-1) * len(drawn)
    keep = [token for token in range(6) if wanted[token] > 4]
    counts = torch.tensor([float(drawn.count(token)) for token in keep])
    scaled = wanted[keep] * counts.sum() / wanted[keep].sum()
    assert chisquare(counts.numpy(), scaled.numpy()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.75}, {0, 1}),
        ({"top_p": 1.0}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 1e-9}, {0}),
        ({"top_k": 3, "top_p": 0.99}, {0, 1, 2}),
    ],
)
def test_only_the_likeliest_are_drawn(options: dict[str, float], kept: set[int]) -> None:
    assert set(draws({"temperature": 1.0, **options}, 8000)) == kept


def test_top_p_keeps_the_ratio_of_those_it_keeps() -> None:
    drawn = draws({"temperature": 1.0, "top_p": 0.75})
    share = drawn.count(0) / len(drawn)
    assert share == pytest.approx(float(LOGITS[0, :2].softmax(-1)[0]), abs=0.03)


def test_greedy_is_the_argmax_and_ends_are_barred_before_their_time() -> None:
    chooser = Chooser(Options(10, min_tokens=2), (0,), 5)
    assert chooser.choose(LOGITS.expand(4, -1), 5).tolist() == [1, 1, 0, 0]
    tokens, likely = chooser.choose_surely(LOGITS, 7)
    assert tokens.tolist() == [0]
    assert float(likely[0]) == pytest.approx(float(LOGITS[0].softmax(-1)[0]))


def test_two_models_that_agree_draw_the_same_token() -> None:
    near = LOGITS + 0.02 * torch.randn(6, generator=torch.Generator().manual_seed(0))
    one, other = (draws({"temperature": 1.0}, 2000, logits) for logits in (LOGITS, near))
    agreed = sum(a == b for a, b in zip(one, other, strict=True)) / 2000
    overlap = float(torch.minimum(LOGITS.softmax(-1), near.softmax(-1)).sum())
    assert agreed > overlap - 0.03
