import pytest
import torch
from paired import KINDS, SOURCE, TARGET, calibration, pair, table

from kvmap.errors import KVMapError
from kvmap.features import columns
from kvmap.kv import KV, KVShape
from kvmap.mappers import reading
from kvmap.mappers.ridge import Ridge

FIT, SELECTION = pair(1, 2, 150), pair(2, 2, 45)


def fitted(**options: object) -> Ridge:
    mapper = Ridge(SOURCE, TARGET, **options).double()
    mapper.calibrate(calibration(FIT, SELECTION))
    return mapper


@pytest.mark.parametrize("inputs", ["own", "both"])
@pytest.mark.parametrize("k", [1, 2, 3, "all"])
def test_forward_is_the_affine_map_of_the_chosen_layers(inputs: str, k: int | str) -> None:
    mapper = fitted(k=k, inputs=inputs, ridge_lambda=1e-3)
    x = table(SELECTION.source)
    mapped = table(mapper(SELECTION.source))
    for readers, solved in KINDS[inputs]:
        for kind in solved:
            for layer in range(TARGET.layers):
                features = x[:, columns(SOURCE, readers, mapper.source_layers[layer])]
                expected = features @ mapper.weight[kind, layer] + mapper.bias[kind, layer]
                found = mapped[:, columns(TARGET, (kind,), torch.tensor([layer]))]
                torch.testing.assert_close(found, expected)


def test_a_calibrated_ridge_predicts_its_selection_documents() -> None:
    mapped, exact = fitted()(SELECTION.source), SELECTION.target
    error = (mapped.keys - exact.keys).square().mean()
    assert error < 0.1 * exact.keys.var()


@pytest.mark.parametrize("k", [2, "all"])
def test_mapping_in_chunks_equals_mapping_at_once(
    k: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapper = fitted(k=k)
    whole = mapper(SELECTION.source)
    parts = [mapper(SELECTION.source.select_tokens(s)) for s in (slice(0, 1), slice(1, 45))]
    torch.testing.assert_close(torch.cat([part.keys for part in parts], 3), whole.keys)
    monkeypatch.setattr(reading, "CHUNK_ROWS", 14)
    torch.testing.assert_close(mapper(SELECTION.source), whole)


def test_tokens_and_documents_do_not_mix() -> None:
    mapper = fitted(k=2)
    other = KV(*(part.clone() for part in SELECTION.source))
    other.keys[:, 1, :, 7] += 1
    changed = (mapper(other).keys != mapper(SELECTION.source).keys).any(4).any(2).any(0)
    assert changed.nonzero().tolist() == [[1, 7]]


def test_the_result_has_the_dtype_of_the_input() -> None:
    mapper = fitted().float()
    mapped = mapper(SELECTION.source.to(torch.bfloat16))
    assert mapped.keys.dtype == mapped.values.dtype == torch.bfloat16
    assert mapped.shape == TARGET


def test_a_mapper_that_was_never_filled_gives_nan() -> None:
    assert Ridge(SOURCE, TARGET)(SELECTION.source.to(torch.float32)).keys.isnan().all()


def test_source_wider_than_target_and_narrower() -> None:
    for source, target in (
        (KVShape(2, 4, 8), KVShape(3, 1, 2)),
        (KVShape(2, 1, 2), KVShape(1, 4, 8)),
    ):
        both = pair(1, 1, 200, source, target)
        mapper = Ridge(source, target, k=1).double()
        mapper.calibrate(calibration(both, pair(2, 1, 100, source, target)))
        mapped = mapper(both.source)
        assert mapped.shape == target
        assert mapped.keys.isfinite().all()


def test_lambdas_and_layers_are_kept() -> None:
    mapper = fitted(k=2, inputs="own")
    assert mapper.lambdas.shape == (2, TARGET.layers)
    assert mapper.lambdas.isfinite().all()
    assert torch.equal(mapper.source_layers, mapper.source_layers.sort(1).values)
    again = Ridge(SOURCE, TARGET, k=2, inputs="own").double()
    again.load_state_dict(mapper.state_dict())
    assert torch.equal(again(SELECTION.source).keys, mapper(SELECTION.source).keys)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k": 4}, "k=4 but the source has 3 layers"),
        ({"ridge_lambda": -0.1}, "ridge_lambda=-0.1"),
        ({"inputs": "keys"}, "inputs=keys"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(KVMapError, match=match):
        Ridge(SOURCE, TARGET, **options)
