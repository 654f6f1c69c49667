import logging

import numpy as np
import pytest
import torch
from paired import KINDS, SOURCE, TARGET, brute_r2, calibration, moments_of, pair, table
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.features import columns
from kvmap.kv import KVPair
from kvmap.moments import Calibration
from kvmap.solve import AUTO_LAMBDAS, solve

FIT, SELECTION = pair(1, 2, 150), pair(2, 1, 90)
LAYERS = torch.tensor([[0, 1], [1, 2], [0, 2], [1, 2], [0, 1]])
EVERY = torch.arange(SOURCE.layers).expand(TARGET.layers, -1)


def lstsq(x: Tensor, y: Tensor, width: int, ridge_lambda: float) -> tuple[np.ndarray, np.ndarray]:
    """Least squares on the centred rows and one row sqrt(λΔ) for each feature."""
    mean_x, mean_y = x.mean(0), y.mean(0)
    from_mean = x - mean_x
    delta = from_mean.square().sum(0).view(-1, width).mean(1).repeat_interleave(width)
    rows_x = torch.cat([from_mean, torch.diag((ridge_lambda * delta).sqrt())])
    rows_y = torch.cat([y - mean_y, torch.zeros(x.shape[1], y.shape[1], dtype=y.dtype)])
    weight = np.linalg.lstsq(rows_x.numpy(), rows_y.numpy(), rcond=None)[0]
    return weight, mean_y.numpy() - mean_x.numpy() @ weight


@pytest.mark.parametrize("inputs", ["own", "both"])
@pytest.mark.parametrize("layers", [LAYERS, EVERY], ids=["chosen", "all"])
@pytest.mark.parametrize("ridge_lambda", [0.0, 1e-6, 0.3])
def test_ridge_equals_least_squares_on_augmented_rows(
    inputs: str, layers: Tensor, ridge_lambda: float
) -> None:
    found = solve(calibration(FIT, SELECTION), layers, inputs, ridge_lambda)
    x, y = table(FIT.source), table(FIT.target)
    for readers, solved in KINDS[inputs]:
        for kind in solved:
            for layer in range(TARGET.layers):
                features = x[:, columns(SOURCE, readers, layers[layer])]
                outputs = y[:, columns(TARGET, (kind,), torch.tensor([layer]))]
                weight, bias = lstsq(features, outputs, SOURCE.width, ridge_lambda)
                error = np.abs(found.weight[kind, layer].numpy() - weight).max()
                assert error <= 1e-6 * np.abs(weight).max()
                np.testing.assert_allclose(found.bias[kind, layer].numpy(), bias, rtol=1e-6)


@pytest.mark.parametrize("inputs", ["own", "both"])
@pytest.mark.parametrize("ridge_lambda", [1e-4, 0.1, 10.0])
def test_score_from_moments_equals_predicting_every_row(inputs: str, ridge_lambda: float) -> None:
    found = solve(calibration(FIT, SELECTION), LAYERS, inputs, ridge_lambda)
    x, y = table(SELECTION.source), table(SELECTION.target)
    for readers, solved in KINDS[inputs]:
        for kind in solved:
            for layer in range(TARGET.layers):
                features = x[:, columns(SOURCE, readers, LAYERS[layer])]
                outputs = y[:, columns(TARGET, (kind,), torch.tensor([layer]))]
                predicted = features @ found.weight[kind, layer] + found.bias[kind, layer]
                expected = brute_r2(predicted, outputs, TARGET.head_dim).mean()
                torch.testing.assert_close(found.r2[kind, layer], expected, rtol=1e-9, atol=1e-9)


def test_the_score_sees_a_bias_that_is_wrong_on_the_selection_documents() -> None:
    moved = KVPair(SELECTION.source, SELECTION.target._replace(keys=SELECTION.target.keys + 5))
    fair, unfair = (
        solve(calibration(FIT, other), EVERY, "own", 1e-4) for other in (SELECTION, moved)
    )
    assert torch.all(unfair.r2[0] < fair.r2[0] - 0.01)
    torch.testing.assert_close(unfair.r2[1], fair.r2[1])


def test_auto_takes_the_best_decade_for_each_layer_and_kind() -> None:
    few = pair(3, 1, 60)  # 60 rows and 48 features: too small a lambda overfits
    both = calibration(few, SELECTION)
    found = solve(both, EVERY, "both", "auto")
    grid = [solve(both, EVERY, "both", ridge_lambda) for ridge_lambda in AUTO_LAMBDAS]
    scores = torch.stack([one.r2 for one in grid])
    assert torch.equal(found.r2, scores.max(0).values)
    assert len(found.ridge_lambda.unique()) > 1
    best = torch.stack([one.weight for one in grid])[
        scores.argmax(0), torch.arange(2)[:, None], torch.arange(TARGET.layers)
    ]
    assert torch.equal(found.weight, best)
    chosen = torch.tensor(AUTO_LAMBDAS, dtype=torch.float64)[scores.argmax(0)]
    assert torch.equal(found.ridge_lambda, chosen)


def test_scaling_a_source_block_scales_its_weights_and_nothing_else() -> None:
    def scaled(both: KVPair) -> KVPair:
        values = both.source.values.clone()
        values[1] *= 1000
        return KVPair(both.source._replace(values=values), both.target)

    plain = solve(calibration(FIT, SELECTION), EVERY, "both", 0.1)
    other = solve(calibration(scaled(FIT), scaled(SELECTION)), EVERY, "both", 0.1)
    torch.testing.assert_close(plain.r2, other.r2, rtol=1e-8, atol=1e-8)


def test_dead_blocks_and_heads_break_nothing() -> None:
    def dead(both: KVPair) -> KVPair:
        keys, exact = both.source.keys.clone(), both.target.keys.clone()
        keys[1] = 7.0
        exact[2, :, 0] = 3.0
        exact[3] = 1.0
        return KVPair(both.source._replace(keys=keys), both.target._replace(keys=exact))

    both = calibration(dead(FIT), dead(SELECTION))
    for ridge_lambda in (0.0, 1e-3, "auto"):
        found = solve(both, EVERY, "both", ridge_lambda)
        assert found.weight.isfinite().all()
        width = SOURCE.width
        assert torch.all(found.weight[:, :, width : 2 * width] == 0)
        assert found.r2[0, 2].isfinite()  # the other heads of the layer count
        assert found.r2[0, 3].isnan()  # no head of this layer varies


def test_an_indefinite_gram_is_mended_loudly_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    # A layer that repeats another one, less a little: an eigenvalue just below zero.
    both = Calibration(moments_of(FIT), moments_of(SELECTION))
    first, second = columns(SOURCE, (0,), torch.tensor([[0], [1]]))
    both.fit.sum_x[second] = both.fit.sum_x[first]
    both.fit.xx[second] = both.fit.xx[first]
    both.fit.xx[:, second] = both.fit.xx[:, first]
    both.fit.xy[second] = both.fit.xy[first]
    mean = both.fit.xx.diagonal().mean()
    both.fit.xx[second, second] -= 1e-9 * mean
    with caplog.at_level(logging.WARNING):
        found = solve(both, EVERY, "own", 0.0)
    assert "not positive definite" in caplog.text
    assert found.weight.isfinite().all()
    both.fit.xx[second, second] -= 0.02 * mean
    with pytest.raises(KVMapError, match="ridge_lambda"):
        solve(both, EVERY, "own", 0.0)


@pytest.mark.parametrize("ridge_lambda", [-1e-3, "many", float("nan"), float("inf"), None])
def test_what_is_no_lambda_is_refused(ridge_lambda: object) -> None:
    with pytest.raises(KVMapError, match=f"ridge_lambda={ridge_lambda}"):
        solve(calibration(FIT, SELECTION), EVERY, "own", ridge_lambda)


def test_unknown_inputs_are_refused() -> None:
    with pytest.raises(KVMapError, match="inputs=keys"):
        solve(calibration(FIT, SELECTION), EVERY, "keys", 0.1)
