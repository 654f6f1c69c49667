import pytest
import torch
from paired import KINDS, SOURCE, TARGET, brute_r2, calibration, pair, table

from kvmap.errors import KVMapError
from kvmap.features import columns
from kvmap.selection import (
    LayerR2,
    choose_layers,
    count_layers,
    curve_ks,
    r2_against_k,
    select,
    single_layer_r2,
)
from kvmap.solve import solve

FIT, SELECTION = pair(1, 2, 150), pair(2, 1, 90)


def brute_single(inputs: str, ridge_lambda: float) -> torch.Tensor:
    """``[2, L_s, L_t]`` from rows: plain normal equations, predictions, scores."""
    scores = torch.zeros(2, SOURCE.layers, TARGET.layers, dtype=torch.float64)
    for readers, solved in KINDS[inputs]:
        for layer in range(SOURCE.layers):
            x = columns(SOURCE, readers, torch.tensor([layer]))
            fit, held = table(FIT.source)[:, x], table(SELECTION.source)[:, x]
            mean = fit.mean(0)
            gram = (fit - mean).T @ (fit - mean)
            delta = gram.diagonal().view(-1, SOURCE.width).mean(1).repeat_interleave(SOURCE.width)
            for kind in solved:
                for reader in range(TARGET.layers):
                    y = columns(TARGET, (kind,), torch.tensor([reader]))
                    known, exact = table(FIT.target)[:, y], table(SELECTION.target)[:, y]
                    cross = (fit - mean).T @ (known - known.mean(0))
                    weight = torch.linalg.solve(gram + ridge_lambda * delta.diag(), cross)
                    predicted = (held - mean) @ weight + known.mean(0)
                    scores[kind, layer, reader] = brute_r2(predicted, exact, 2).mean()
    return scores


@pytest.mark.parametrize("inputs", ["own", "both"])
def test_selection_equals_brute_force(inputs: str) -> None:
    both = calibration(FIT, SELECTION)
    found, expected = single_layer_r2(both, inputs, 0.01), brute_single(inputs, 0.01)
    torch.testing.assert_close(torch.stack(list(found)), expected, rtol=1e-8, atol=1e-8)
    score = expected.mean(0)
    for k in (1, 2):
        chosen = choose_layers(both, k, inputs, 0.01)
        for layer in range(TARGET.layers):
            best = sorted(range(SOURCE.layers), key=lambda s: (-score[s, layer].item(), s))[:k]
            assert chosen[layer].tolist() == sorted(best)
    assert len(choose_layers(both, 1, inputs, 0.01).unique()) > 1


def test_ties_go_to_the_lower_layer_and_layers_ascend() -> None:
    keys = torch.tensor([[0.1, 0.5], [0.3, 0.5], [0.2, 0.5], [0.3, torch.nan]])
    r2 = LayerR2(keys, keys.clone())
    assert select(r2, 1).tolist() == [[1], [0]]
    assert select(r2, 2).tolist() == [[1, 3], [0, 1]]
    assert select(r2, "all").tolist() == [[0, 1, 2, 3]] * 2


def test_with_auto_lambda_all_layers_are_no_worse_on_selection() -> None:
    both = calibration(pair(1, 4, 300), pair(2, 2, 200))
    curve = r2_against_k(both, "both", "auto")
    assert curve.ks == (1, 2, 3)
    for scores in (curve.keys, curve.values):
        assert scores[-1] >= scores.max() - 1e-6
        assert scores[-1] > scores[0] + 0.05


def test_the_curve_is_the_mean_of_the_solves() -> None:
    both = calibration(FIT, SELECTION)
    curve = r2_against_k(both, "own", 0.01, ks=(2,))
    found = solve(both, choose_layers(both, 2, "own", 0.01), "own", 0.01)
    torch.testing.assert_close(torch.stack([curve.keys[0], curve.values[0]]), found.r2.mean(1))


def test_a_deep_curve_is_thinned_and_ends_with_all() -> None:
    assert curve_ks(1) == (1,)
    assert curve_ks(3) == (1, 2, 3)
    assert curve_ks(28) == (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 28)
    assert curve_ks(24)[-2:] == (20, 24)


@pytest.mark.parametrize("k", [0, -1, 4, 1.5, "some", True])
def test_a_k_that_does_not_fit_names_both_numbers(k: object) -> None:
    with pytest.raises(KVMapError, match=f"k={k} but the source has 3 layers"):
        count_layers(k, 3)
