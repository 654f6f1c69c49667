from pathlib import Path

import pytest
import torch
from paired import SOURCE, TARGET, moments_of, pair, table

from kvmap import moments as module
from kvmap.errors import KVMapError
from kvmap.features import columns
from kvmap.kv import KV, KVPair, KVShape
from kvmap.moments import Moments

NAMES = ("sum_x", "sum_y", "xx", "xy", "yy")


def assert_same(one: Moments, other: Moments) -> None:
    assert one.n == other.n
    for name in NAMES:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-9)


def cut(both: KVPair, documents: slice | torch.Tensor, tokens: slice | torch.Tensor) -> KVPair:
    return KVPair(*(KV(*(part[:, documents][:, :, :, tokens] for part in kv)) for kv in both))


def test_moments_are_the_sums_over_rows() -> None:
    both = pair(1, 3, 7)
    found = moments_of(both)
    x, y = table(both.source), table(both.target)
    assert found.n == 21
    torch.testing.assert_close(found.xx, x.T @ x)
    torch.testing.assert_close(found.xy, x.T @ y)
    torch.testing.assert_close(found.yy, y.square().sum(0))
    torch.testing.assert_close(found.sum_x, x.sum(0))
    torch.testing.assert_close(found.sum_y, y.sum(0))


def test_rows_are_ordered_kind_layer_head_dim() -> None:
    both = pair(1, 2, 3)
    row = table(both.source)[1 * 3 + 2]  # document 1, token 2
    expected = torch.cat([part[:, 1, :, 2].reshape(-1) for part in both.source])
    assert torch.equal(row, expected)
    chosen = columns(SOURCE, (1,), torch.tensor([[0, 2]]))
    expected = both.source.values[[0, 2], 1, :, 2].reshape(-1)
    assert torch.equal(row[chosen[0]], expected)


def test_shuffled_split_and_merged_batches_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    both = pair(2, 4, 10)
    whole = moments_of(both)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    assert_same(whole, moments_of(cut(both, torch.tensor([3, 0, 2, 1]), order)))
    assert_same(
        whole, moments_of(cut(both, slice(0, 1), slice(None)), cut(both, slice(1, 4), slice(None)))
    )
    first = moments_of(cut(both, slice(None), slice(0, 3)))
    assert_same(whole, first + moments_of(cut(both, slice(None), slice(3, 10))))
    monkeypatch.setattr(module, "BLOCK_ROWS", 4)
    assert_same(whole, moments_of(both))
    monkeypatch.setattr(module, "BLOCK_ROWS", 20)
    assert_same(whole, moments_of(both))


def test_centred_is_about_the_means_and_takes_sub_blocks() -> None:
    both = pair(3, 2, 20)
    x = columns(SOURCE, (0, 1), torch.tensor([0, 2]))
    y = columns(TARGET, (1,), torch.tensor([1, 2]))
    found = moments_of(both).centred(x, y)
    rows_x, rows_y = table(both.source)[:, x], table(both.target)[:, y]
    from_mean_x, from_mean_y = rows_x - rows_x.mean(0), rows_y - rows_y.mean(0)
    torch.testing.assert_close(found.xx, from_mean_x.T @ from_mean_x)
    left = torch.randn(3, len(x), dtype=torch.float64)
    torch.testing.assert_close(found.times_xy(left), left @ from_mean_x.T @ from_mean_y)
    torch.testing.assert_close(found.yy, from_mean_y.square().sum(0))


def test_saved_moments_come_back_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    original = moments_of(pair(4, 1, 5))
    path = tmp_path / "moments-fit.safetensors"
    original.save(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    loaded = Moments.load(path)
    assert (loaded.source, loaded.target, loaded.n) == (SOURCE, TARGET, 5)
    assert all(torch.equal(getattr(loaded, name), getattr(original, name)) for name in NAMES)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(KVMapError, match=path.name):
        Moments.load(path)


def test_memory_is_known_beforehand() -> None:
    empty = Moments.zeros(SOURCE, TARGET)
    held = sum(getattr(empty, name).nbytes for name in NAMES)
    assert Moments.memory_bytes(SOURCE, TARGET) == held


def test_wrong_shapes_no_rows_and_nan_are_refused() -> None:
    both = pair(5, 1, 4)
    with pytest.raises(KVMapError, match="layers=4"):
        Moments.zeros(KVShape(4, 2, 4), TARGET).update(both)
    with pytest.raises(KVMapError, match="merged"):
        Moments.zeros(SOURCE, TARGET) + Moments.zeros(TARGET, SOURCE)
    with pytest.raises(KVMapError, match="at least 2"):
        Moments.zeros(SOURCE, TARGET).centred()
    both.source.keys[0, 0, 0, 0, 0] = torch.nan
    with pytest.raises(KVMapError, match="NaN"):
        moments_of(both).centred()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_moments() -> None:
    both = pair(6, 4, 300)
    found = Moments.zeros(SOURCE, TARGET, device="cuda")
    found.update(both)
    expected = moments_of(both)
    assert found.xx.dtype == torch.float64
    torch.testing.assert_close(
        found.centred().xx.cpu(), expected.centred().xx, rtol=1e-5, atol=1e-2
    )
    torch.testing.assert_close(found.xy.cpu(), expected.xy, rtol=1e-5, atol=1e-2)
    torch.linalg.cholesky(found.centred().xx)
