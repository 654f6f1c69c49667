"""The diagnostics of spec section 4: formulas, limits, and independence of batching."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from kvmap.errors import KVMapError
from kvmap.kv import KV, KVShape
from kvmap.metrics import (
    R2,
    AttentionOutputCosine,
    KeyErrorConcentration,
    ValueErrorConcentration,
)
from kvmap.metrics.query_metric import QueryMetric

LAYERS, BATCH, HEADS, QUERY_HEADS, TOKENS, QUERIES, DIM = 3, 4, 2, 6, 20, 5, 8
PER_HEAD = QUERY_HEADS // HEADS
SCALING = DIM**-0.5
QUERY_METRICS: list[type[QueryMetric]] = [
    AttentionOutputCosine,
    KeyErrorConcentration,
    ValueErrorConcentration,
]


class Documents(NamedTuple):
    """What one update of a query metric takes."""

    mapped: KV
    exact: KV
    queries: Tensor
    query_positions: Tensor
    positions: Tensor
    scaling: float = SCALING

    def slice(self, documents: slice) -> "Documents":
        def cut(tensor: Tensor) -> Tensor:
            return tensor[:, documents]

        return self._replace(
            mapped=KV(*map(cut, self.mapped)),
            exact=KV(*map(cut, self.exact)),
            queries=cut(self.queries),
        )


def draw(dtype: torch.dtype = torch.float64, error: float = 0.5, seed: int = 0) -> Documents:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    kv = (LAYERS, BATCH, HEADS, TOKENS, DIM)
    exact = KV(normal(*kv), normal(*kv))
    mapped = KV(*(tensor + error * normal(*kv) for tensor in exact))
    queries = normal(LAYERS, BATCH, QUERY_HEADS, QUERIES, DIM)
    positions = 3 * torch.arange(TOKENS)
    return Documents(
        mapped.to(dtype),
        exact.to(dtype),
        queries.to(dtype),
        torch.tensor([0, 7, 30, 44, 57]),
        positions,
    )


def measured(metric: QueryMetric, *documents: Documents) -> Tensor:
    for part in documents:
        metric.update(*part)
    return metric.compute()


def loop_weights(
    documents: Documents, kv: KV, layer: int, document: int, head: int
) -> Iterator[Tensor]:
    """Attention weights of each query over the keys at its position or before, one at a time."""
    keys = kv.keys[layer, document, head // PER_HEAD]
    for query, at in zip(
        documents.queries[layer, document, head], documents.query_positions, strict=True
    ):
        seen = [t for t in range(TOKENS) if documents.positions[t] <= at]
        weights = torch.zeros(TOKENS, dtype=keys.dtype)
        weights[seen] = torch.softmax(documents.scaling * keys[seen] @ query, 0)
        yield weights


def over_heads(one: Callable[[int, int], float]) -> Tensor:
    """Mean over query heads of a number per (layer, head)."""
    return torch.tensor(
        [[one(layer, g) for g in range(QUERY_HEADS)] for layer in range(LAYERS)],
        dtype=torch.float64,
    ).mean(1)


def test_attention_cosine_equals_a_plain_loop() -> None:
    documents = draw()

    def one(layer: int, g: int) -> float:
        cosines = []
        for d in range(BATCH):
            outputs = [
                [
                    w @ kv.values[layer, d, g // PER_HEAD]
                    for w in loop_weights(documents, kv, layer, d, g)
                ]
                for kv in (documents.mapped, documents.exact)
            ]
            cosines += [float(a @ b / (a.norm() * b.norm())) for a, b in zip(*outputs, strict=True)]
        return sum(cosines) / len(cosines)

    result = measured(AttentionOutputCosine(LAYERS, QUERY_HEADS), documents)
    torch.testing.assert_close(result, over_heads(one))


def test_value_concentration_equals_a_plain_loop() -> None:
    documents = draw()

    def one(layer: int, g: int) -> float:
        above = below = 0.0
        for d in range(BATCH):
            weights = loop_weights(documents, documents.exact, layer, d, g)
            attention = sum((w**2 for w in weights), torch.zeros(TOKENS, dtype=torch.float64))
            h = g // PER_HEAD
            error = documents.mapped.values[layer, d, h] - documents.exact.values[layer, d, h]
            squared = (error**2).sum(-1)
            above += float(TOKENS * (attention * squared).sum())
            below += float(attention.sum() * squared.sum())
        return above / below

    result = measured(ValueErrorConcentration(LAYERS, QUERY_HEADS), documents)
    torch.testing.assert_close(result, over_heads(one))


def test_key_concentration_of_one_document_equals_the_svd_form() -> None:
    documents = draw().slice(slice(0, 1))

    def one(layer: int, g: int) -> float:
        h = g // PER_HEAD
        error = documents.mapped.keys[layer, 0, h] - documents.exact.keys[layer, 0, h]
        _, sigma, directions = torch.linalg.svd(documents.queries[layer, 0, g])
        weights = torch.zeros(DIM, dtype=torch.float64)
        weights[: len(sigma)] = sigma**2
        energy = ((error @ directions.mT) ** 2).sum(0)
        return float((energy * weights).sum() / weights.mean() / (error**2).sum())

    result = measured(KeyErrorConcentration(LAYERS, QUERY_HEADS), documents)
    torch.testing.assert_close(result, over_heads(one))


def test_key_concentration_sums_documents_before_it_divides() -> None:
    documents = draw()
    scale = torch.tensor([1.0, 30.0, 0.1, 5.0], dtype=torch.float64)
    documents = documents._replace(queries=documents.queries * scale[:, None, None, None])

    def one(layer: int, g: int) -> float:
        above = below = 0.0
        for d in range(BATCH):
            h = g // PER_HEAD
            error = documents.mapped.keys[layer, d, h] - documents.exact.keys[layer, d, h]
            queries = documents.queries[layer, d, g]
            above += float(DIM * ((error @ queries.mT) ** 2).sum())
            below += float((error**2).sum() * (queries**2).sum())
        return above / below

    result = measured(KeyErrorConcentration(LAYERS, QUERY_HEADS), documents)
    torch.testing.assert_close(result, over_heads(one))


def test_concentrations_of_errors_without_direction_are_about_one() -> None:
    parts = [draw(seed=seed) for seed in range(40)]
    keys = measured(KeyErrorConcentration(LAYERS, QUERY_HEADS), *parts)
    values = measured(ValueErrorConcentration(LAYERS, QUERY_HEADS), *parts)
    torch.testing.assert_close(keys, torch.ones_like(keys), atol=0.05, rtol=0)
    torch.testing.assert_close(values, torch.ones_like(values), atol=0.05, rtol=0)


def test_key_errors_along_what_queries_read_concentrate_and_across_it_do_not() -> None:
    documents = draw()
    _, _, directions = torch.linalg.svd(documents.queries[:, :, ::PER_HEAD])
    documents = documents._replace(
        queries=documents.queries[:, :, ::PER_HEAD].repeat_interleave(PER_HEAD, 2)
    )

    def result(direction: Tensor) -> Tensor:
        keys = documents.exact.keys + direction.unsqueeze(-2)
        moved = documents._replace(mapped=KV(keys, documents.mapped.values))
        return measured(KeyErrorConcentration(LAYERS, QUERY_HEADS), moved)

    assert (result(directions[..., 0, :]) > 2).all()
    assert (result(directions[..., -1, :]) < 1e-12).all()  # Q < D: nobody reads this direction


def test_value_errors_where_attention_looks_concentrate() -> None:
    documents = draw()

    def result(token: int) -> Tensor:
        values = documents.exact.values.clone()
        values[..., token, :] += 1
        moved = documents._replace(mapped=KV(documents.mapped.keys, values))
        return measured(ValueErrorConcentration(LAYERS, QUERY_HEADS), moved)

    assert (result(0) > 2).all()  # the first query sees this token alone
    assert (result(-1) < 0.5).all()


def test_key_concentration_is_unchanged_by_rotating_keys_and_queries() -> None:
    documents = draw()
    generator = torch.Generator().manual_seed(9)
    rotation, _ = torch.linalg.qr(torch.randn(DIM, DIM, generator=generator, dtype=torch.float64))
    rotated = documents._replace(
        mapped=KV(documents.mapped.keys @ rotation, documents.mapped.values),
        exact=KV(documents.exact.keys @ rotation, documents.exact.values),
        queries=documents.queries @ rotation,
    )
    torch.testing.assert_close(
        measured(KeyErrorConcentration(LAYERS, QUERY_HEADS), rotated),
        measured(KeyErrorConcentration(LAYERS, QUERY_HEADS), documents),
    )


@pytest.mark.parametrize("family", QUERY_METRICS)
def test_query_metrics_do_not_depend_on_batch_split_order_or_merging(
    family: type[QueryMetric],
) -> None:
    documents = draw()
    whole = measured(family(LAYERS, QUERY_HEADS), documents)
    parts = [documents.slice(slice(0, 1)), documents.slice(slice(1, 4))]
    torch.testing.assert_close(measured(family(LAYERS, QUERY_HEADS), *parts), whole)
    torch.testing.assert_close(measured(family(LAYERS, QUERY_HEADS), *reversed(parts)), whole)

    first, second = family(LAYERS, QUERY_HEADS), family(LAYERS, QUERY_HEADS)
    first.update(*parts[0])
    second.update(*parts[1])
    first.merge_state(second)
    torch.testing.assert_close(first.compute(), whole)


@pytest.mark.parametrize("family", QUERY_METRICS)
def test_query_metrics_in_float32_and_bfloat16_follow_float64(family: type[QueryMetric]) -> None:
    single = draw(torch.float32)
    half = draw(torch.bfloat16)
    # The same rounded numbers in float64, so that only the arithmetic differs.
    for documents, tolerance in ((single, 1e-5), (half, 1e-5)):
        wide = documents._replace(
            mapped=documents.mapped.to(torch.float64),
            exact=documents.exact.to(torch.float64),
            queries=documents.queries.double(),
        )
        torch.testing.assert_close(
            measured(family(LAYERS, QUERY_HEADS), documents),
            measured(family(LAYERS, QUERY_HEADS), wide),
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize("family", QUERY_METRICS)
def test_query_metrics_reset_and_leave_their_inputs_alone(family: type[QueryMetric]) -> None:
    documents, other = draw(), draw(seed=1)
    metric = family(LAYERS, QUERY_HEADS)
    first = measured(metric, documents)
    metric.reset()
    assert not torch.equal(measured(metric, other), first)
    metric.reset()
    assert torch.equal(measured(metric, documents), first)
    untouched = draw()
    assert torch.equal(documents.queries, untouched.queries)
    for kv, original in ((documents.mapped, untouched.mapped), (documents.exact, untouched.exact)):
        assert torch.equal(kv.keys, original.keys)
        assert torch.equal(kv.values, original.values)


def test_exact_kv_has_cosine_one_and_no_concentration() -> None:
    documents = draw()
    exact = documents._replace(mapped=documents.exact)
    cosine = measured(AttentionOutputCosine(LAYERS, QUERY_HEADS), exact)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
    for family in (KeyErrorConcentration, ValueErrorConcentration):
        assert measured(family(LAYERS, QUERY_HEADS), exact).isnan().all()


def test_heads_without_error_are_left_out_and_broken_heads_are_seen() -> None:
    documents = draw()
    concentrations: list[tuple[type[QueryMetric], str]] = [
        (KeyErrorConcentration, "keys"),
        (ValueErrorConcentration, "values"),
    ]
    for family, kind in concentrations:
        some = getattr(documents.mapped, kind).clone()
        some[:, :, 0] = getattr(documents.exact, kind)[:, :, 0]
        metric = family(LAYERS, QUERY_HEADS)
        metric.update(*documents._replace(mapped=documents.mapped._replace(**{kind: some})))
        assert metric.per_head()[:, :PER_HEAD].isnan().all()
        torch.testing.assert_close(metric.compute(), metric.per_head()[:, PER_HEAD:].mean(1))
    for family in QUERY_METRICS:
        broken = KV(*(tensor.clone() for tensor in documents.mapped))
        broken.keys[1, :, 0] = torch.nan
        broken.values[1, :, 0] = torch.nan
        result = measured(family(LAYERS, QUERY_HEADS), documents._replace(mapped=broken))
        assert result.isnan().tolist() == [False, True, False]


def test_only_key_concentration_looks_past_the_query() -> None:
    documents = draw()._replace(query_positions=torch.tensor([3, 4, 5, 6, 7]))
    later = KV(*(tensor.clone() for tensor in documents.exact))
    for tensor in later:
        tensor[..., 3:, :] += 100  # positions 9 and on
    moved = documents._replace(mapped=later)
    cosine = measured(AttentionOutputCosine(LAYERS, QUERY_HEADS), moved)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
    values = measured(ValueErrorConcentration(LAYERS, QUERY_HEADS), moved)
    assert torch.equal(values, torch.zeros_like(values))
    assert (measured(KeyErrorConcentration(LAYERS, QUERY_HEADS), moved) > 0).all()


def test_query_metrics_refuse_what_does_not_fit() -> None:
    documents = draw()
    metric = AttentionOutputCosine(LAYERS, QUERY_HEADS)
    bad = [
        documents._replace(positions=documents.positions + 1),  # query 0 has nothing to read
        documents._replace(positions=documents.positions[1:]),
        documents._replace(query_positions=documents.query_positions[1:]),
        documents._replace(queries=documents.queries[:, :, 1:]),
        documents._replace(mapped=documents.mapped.select_tokens(slice(1, None))),
    ]
    for documents in bad:
        with pytest.raises(KVMapError):
            metric.update(*documents)
    with pytest.raises(KVMapError, match="layers"):
        AttentionOutputCosine(LAYERS + 1, QUERY_HEADS).update(*draw())
    uneven = draw()._replace(queries=draw().queries[:, :, :5])
    with pytest.raises(KVMapError, match="evenly"):
        AttentionOutputCosine(LAYERS, 5).update(*uneven)


def outputs(mean: float = 0.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (LAYERS, BATCH, HEADS, 50, DIM)
    exact = torch.randn(shape, generator=generator, dtype=torch.float64)
    exact = exact * torch.logspace(-1, 1, DIM, dtype=torch.float64)
    mapped = exact + 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return (mapped + mean).to(dtype), (exact + mean).to(dtype)


SHAPE = KVShape(LAYERS, HEADS, DIM)


def plain_r2(mapped: Tensor, exact: Tensor) -> Tensor:
    """Two passes, centred before squaring, in float64: ``[L]``."""
    mapped, exact = mapped.double(), exact.double()
    sse = ((mapped - exact) ** 2).sum((1, 3, 4))
    sst = ((exact - exact.mean((1, 3), keepdim=True)) ** 2).sum((1, 3, 4))
    return (1 - sse / sst).mean(1)


@pytest.mark.parametrize(("mean", "scale"), [(0.0, 1.0), (1000.0, 1.0), (1000.0, 1e-3)])
def test_r2_is_accurate_far_from_zero(mean: float, scale: float) -> None:
    mapped, exact = outputs()
    mapped, exact = scale * mapped + mean, scale * exact + mean
    metric = R2(SHAPE)
    for document in range(BATCH):
        metric.update(mapped[:, document : document + 1], exact[:, document : document + 1])
    torch.testing.assert_close(metric.compute(), plain_r2(mapped, exact), rtol=0, atol=1e-6)


def test_r2_of_float32_with_mean_1000_and_std_1_over_many_batches() -> None:
    generator = torch.Generator().manual_seed(4)
    exact = (1000 + torch.randn(1, 200, 1, 100, 4, generator=generator)).float()
    mapped = exact + 0.5 * torch.randn(exact.shape, generator=generator)
    metric = R2(KVShape(1, 1, 4))
    for left, right in zip(mapped.split(1, 1), exact.split(1, 1), strict=True):
        metric.update(left, right)
    torch.testing.assert_close(metric.compute(), plain_r2(mapped, exact), rtol=0, atol=1e-9)


def test_r2_pools_a_heads_dimensions_and_then_averages_heads() -> None:
    mapped, exact = outputs()
    mapped[:, :, 1] += 3  # the second head fits worse
    metric = R2(SHAPE)
    metric.update(mapped, exact)
    torch.testing.assert_close(metric.compute(), plain_r2(mapped, exact))
    per_head = metric.per_head()
    assert (per_head[:, 0] > per_head[:, 1]).all()
    torch.testing.assert_close(metric.compute(), per_head.mean(1))


def test_r2_of_the_mean_is_zero_and_of_the_exact_kv_is_one() -> None:
    _, exact = outputs(mean=5)
    mean = exact.mean((1, 3), keepdim=True).expand_as(exact)
    for mapped, expected in ((mean, 0.0), (exact, 1.0)):
        metric = R2(SHAPE)
        metric.update(mapped, exact)
        torch.testing.assert_close(
            metric.compute(), torch.full((LAYERS,), expected, dtype=torch.float64)
        )


def test_r2_does_not_depend_on_batch_split_order_or_merging_and_resets() -> None:
    mapped, exact = outputs(mean=10, dtype=torch.float32)
    whole = R2(SHAPE)
    whole.update(mapped, exact)
    split = R2(SHAPE)
    split.update(mapped[:, 3:], exact[:, 3:])
    # A document may come in pieces, too: R² knows rows only.
    split.update(mapped[:, :3, :, :7], exact[:, :3, :, :7])
    rest = R2(SHAPE)
    rest.update(mapped[:, :3, :, 7:], exact[:, :3, :, 7:])
    split.merge_state(rest)
    torch.testing.assert_close(split.compute(), whole.compute())
    before = whole.compute()
    whole.reset()
    whole.update(exact, exact)
    assert not torch.equal(whole.compute(), before)


def test_one_layer_is_still_a_row() -> None:
    documents = draw()
    first = documents._replace(
        mapped=KV(*(tensor[:1] for tensor in documents.mapped)),
        exact=KV(*(tensor[:1] for tensor in documents.exact)),
        queries=documents.queries[:1],
    )
    for family in QUERY_METRICS:
        whole = measured(family(LAYERS, QUERY_HEADS), documents)
        torch.testing.assert_close(measured(family(1, QUERY_HEADS), first), whole[:1])
    metric = R2(KVShape(1, HEADS, DIM))
    metric.update(first.mapped.keys, first.exact.keys)
    assert metric.compute().shape == (1,)
    assert metric.compute().shape == (1,)  # the cached result as well


def test_r2_leaves_float64_inputs_alone() -> None:
    mapped, exact = outputs()
    kept = exact.clone()
    R2(SHAPE).update(mapped, exact)
    assert torch.equal(exact, kept)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1234.5])
def test_r2_of_a_head_that_never_varies_is_nan_and_left_out_of_the_mean(constant: float) -> None:
    mapped, exact = outputs()
    exact[:, :, 0] = constant
    exact[2] = constant
    metric = R2(SHAPE)
    for document in range(BATCH):
        metric.update(mapped[:, document : document + 1], exact[:, document : document + 1])
    assert metric.per_head()[:, 0].isnan().all()
    torch.testing.assert_close(metric.compute()[:2], metric.per_head()[:2, 1])
    assert metric.compute()[2].isnan()


def test_r2_shows_a_broken_head() -> None:
    mapped, exact = outputs()
    mapped[0, :, 0] = torch.nan
    metric = R2(SHAPE)
    metric.update(mapped, exact)
    assert metric.compute().isnan().tolist() == [True, False, False]


def test_r2_refuses_another_shape() -> None:
    mapped, exact = outputs()
    with pytest.raises(KVMapError, match="R2 was made for"):
        R2(SHAPE).update(mapped[..., 1:], exact)
    with pytest.raises(KVMapError, match="R2 was made for"):
        R2(KVShape(LAYERS, HEADS + 1, DIM)).update(mapped, exact)


def test_sums_stay_float64_when_the_module_that_holds_them_is_cast() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.r2 = R2(SHAPE)
            self.cosine = AttentionOutputCosine(LAYERS, QUERY_HEADS)

    mapped, exact = outputs(mean=1000)
    holder = Holder()
    holder.r2.update(mapped[:, :2], exact[:, :2])
    holder.cosine.update(*draw())
    cosine = holder.cosine.compute()
    for cast in (
        lambda: holder.to(torch.bfloat16),
        lambda: holder.half(),
        lambda: holder.to("cpu", torch.float32),
        lambda: holder.r2.set_dtype(torch.float16),
    ):
        cast()
        assert holder.r2.squares.dtype == holder.cosine.numerator.dtype == torch.float64
    holder.r2.update(mapped[:, 2:], exact[:, 2:])
    torch.testing.assert_close(holder.r2.compute(), plain_r2(mapped, exact), rtol=0, atol=1e-8)
    assert torch.equal(holder.cosine.compute(), cosine)
    holder.r2.reset()
    assert holder.r2.squares.dtype == torch.float64


def test_metrics_can_be_used_in_and_after_inference_mode() -> None:
    documents = draw()
    metric = KeyErrorConcentration(LAYERS, QUERY_HEADS)
    with torch.inference_mode():
        metric.reset()
        metric.update(*documents.slice(slice(0, 2)))
    metric.update(*documents.slice(slice(2, 4)))
    torch.testing.assert_close(
        metric.compute(), measured(KeyErrorConcentration(LAYERS, QUERY_HEADS), documents)
    )
