"""The bottleneck family against reduced-rank regression done plainly."""

import pytest
import torch
from paired import SOURCE, TARGET, calibration, pair, table

from kvmap.errors import KVMapError
from kvmap.mappers.bottleneck import Bottleneck
from kvmap.mappers.ridge import Ridge

FIT, SELECTION = pair(1, 2, 150), pair(2, 2, 45)


def fitted(**options: object) -> Bottleneck:
    torch.manual_seed(0)
    mapper = Bottleneck(SOURCE, TARGET, hidden=6, **options).double()  # type: ignore[arg-type]
    mapper.calibrate(calibration(FIT, SELECTION))
    return mapper


def test_a_code_as_long_as_the_features_is_ridge() -> None:
    ridge = Ridge(SOURCE, TARGET).double()
    ridge.calibrate(calibration(FIT, SELECTION))
    mapped, wanted = fitted(code=10_000)(SELECTION.source), ridge(SELECTION.source)
    for mine, theirs in zip(mapped, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1, 4, 9])
def test_a_shorter_code_is_the_best_approximation_of_what_ridge_predicts(size: int) -> None:
    ridge = Ridge(SOURCE, TARGET).double()
    ridge.calibrate(calibration(FIT, SELECTION))
    known = table(FIT.target)
    std = known.std(0, correction=0)
    predicted = (table(ridge(FIT.source)) - known.mean(0)) / std
    values = torch.linalg.svdvals(predicted)
    shorter = (table(fitted(code=size)(FIT.source)) - known.mean(0)) / std
    left = (predicted - shorter).square().sum()
    torch.testing.assert_close(left, values[size:].square().sum(), rtol=1e-4, atol=1e-6)


def test_the_loss_is_that_of_the_map_in_units_of_deviations() -> None:
    mapper = fitted(code=5)
    torch.nn.init.normal_(mapper.bent_out)
    torch.nn.init.normal_(mapper.shift)
    std = table(FIT.target).std(0, correction=0)
    error = (table(mapper(SELECTION.source)) - table(SELECTION.target)) / std
    torch.testing.assert_close(mapper.loss(SELECTION), error.square().mean())


@pytest.mark.parametrize("wrong", [{"code": 0}, {"hidden": -1}, {"lr": 0}, {"batch_size": 0}])
def test_arguments_out_of_range_are_named(wrong: dict[str, int]) -> None:
    with pytest.raises(KVMapError, match=next(iter(wrong))):
        Bottleneck(SOURCE, TARGET, **wrong)  # type: ignore[arg-type]
