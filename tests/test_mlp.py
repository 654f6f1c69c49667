import pytest
import torch
from paired import KINDS, SOURCE, TARGET, calibration, pair, table

from kvmap.errors import KVMapError
from kvmap.features import columns
from kvmap.mappers import reading
from kvmap.mappers.mlp import MLP
from kvmap.mappers.ridge import Ridge

FIT, SELECTION = pair(1, 2, 150), pair(2, 2, 45)


def fitted(**options: object) -> MLP:
    torch.manual_seed(0)
    mapper = MLP(SOURCE, TARGET, hidden=6, **options).double()
    mapper.calibrate(calibration(FIT, SELECTION))
    return mapper


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(
    ("inputs", "k"), [("own", 2), ("own", "all"), ("both", 1), ("both", "all")]
)
def test_forward_equals_a_loop_over_plain_networks(inputs: str, k: int | str, depth: int) -> None:
    mapper = fitted(inputs=inputs, k=k, depth=depth, residual=False)
    for biases in (mapper.first_bias, *mapper.later_bias):
        torch.nn.init.normal_(biases)
    fit_x, fit_y = table(FIT.source), table(FIT.target)
    x = (table(SELECTION.source) - fit_x.mean(0)) / fit_x.std(0, correction=0)
    mapped = table(mapper(SELECTION.source))
    layers, heads, dim = TARGET
    for readers, solved in KINDS[inputs]:
        for kind in solved:
            for layer in range(layers):
                features = x[:, columns(SOURCE, readers, mapper.source_layers[layer])]
                out = columns(TARGET, (kind,), torch.tensor([layer])).view(heads, dim)
                for head in range(heads):
                    mine = slice(6 * head, 6 * head + 6)
                    hidden = features @ mapper.first[kind, layer, :, mine]
                    hidden = hidden + mapper.first_bias[kind, layer, :, mine]
                    for weight, bias in zip(mapper.later, mapper.later_bias, strict=True):
                        hidden = hidden.relu() @ weight[kind, layer, head]
                        hidden = hidden + bias[kind, layer, head]
                    known = fit_y[:, out[head]]
                    expected = hidden * known.std(0, correction=0) + known.mean(0)
                    torch.testing.assert_close(mapped[:, out[head]], expected)


@pytest.mark.parametrize("k", [2, "all"])
def test_a_residual_start_is_ridge_exactly(k: int | str) -> None:
    mapper = fitted(k=k, residual=True)
    ridge = Ridge(SOURCE, TARGET, k=k).double()
    ridge.calibrate(calibration(FIT, SELECTION))
    assert torch.equal(mapper(SELECTION.source).keys, ridge(SELECTION.source).keys)
    assert torch.equal(mapper(SELECTION.source).values, ridge(SELECTION.source).values)
    assert torch.equal(mapper.source_layers, ridge.source_layers)


@pytest.mark.parametrize("residual", [True, False])
def test_loss_is_the_standardised_error_and_steps_lower_it(residual: bool) -> None:
    mapper = fitted(residual=residual, lr=3e-3, ridge_lambda=0.1)
    before = mapper.loss(FIT)
    exact, mapped = table(FIT.target), table(mapper(FIT.source))
    expected = ((mapped - exact) / exact.std(0, correction=0)).square().mean()
    torch.testing.assert_close(before, expected)
    frozen = {name: buffer.clone() for name, buffer in mapper.named_buffers()}
    optimiser = mapper.configure_optimizers()
    for _ in range(60):
        optimiser.zero_grad()
        mapper.loss(FIT).backward()
        optimiser.step()
    assert mapper.loss(FIT) < 0.9 * before
    assert all(torch.equal(frozen[name], buffer) for name, buffer in mapper.named_buffers())


def test_mapping_in_chunks_equals_mapping_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mapper = fitted(k=2, residual=False)
    whole = mapper(SELECTION.source)
    monkeypatch.setattr(reading, "CHUNK_ROWS", 14)
    torch.testing.assert_close(mapper(SELECTION.source), whole)


def test_a_mapper_that_was_never_filled_gives_nan() -> None:
    for residual in (True, False):
        mapped = MLP(SOURCE, TARGET, residual=residual)(SELECTION.source.to(torch.float32))
        assert mapped.keys.isnan().all()


def test_a_large_one_states_its_price(caplog: pytest.LogCaptureFixture) -> None:
    with torch.device("meta"):
        MLP([1, 2, 64], [8, 8, 64], hidden=1024, residual=False)
    assert "billion parameters" in caplog.text


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k": 4}, "k=4 but the source has 3 layers"),
        ({"ridge_lambda": -0.1, "residual": False}, "ridge_lambda=-0.1"),
        ({"inputs": "keys"}, "inputs=keys"),
        ({"hidden": 0}, "hidden=0 must be"),
        ({"depth": 0}, "depth=0 must be"),
        ({"epochs": 0}, "epochs=0 must be"),
        ({"batch_size": 0}, "batch_size=0 must be"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(KVMapError, match=match):
        MLP(SOURCE, TARGET, **options)
