"""Small random paired KV with a linear relation, a mean and noise, which the mapper tests share."""

import torch
from torch import Tensor

from kvmap.features import rows
from kvmap.kv import KV, KVPair, KVShape
from kvmap.moments import Calibration, Moments

SOURCE, TARGET = KVShape(3, 2, 4), KVShape(5, 3, 2)
KINDS = {"own": (((0,), (0,)), ((1,), (1,))), "both": (((0, 1), (0, 1)),)}


def pair(
    seed: int, batch: int, tokens: int, source: KVShape = SOURCE, target: KVShape = TARGET
) -> KVPair:
    """KV in float64: targets mix nearby source layers, with noise that differs between layers."""
    world = torch.Generator().manual_seed(99)
    mix_size = (2 * target.layers * target.width, 2 * source.layers * source.width)
    mix = torch.randn(mix_size, generator=world, dtype=torch.float64)
    reach = torch.rand(2 * target.layers, 2 * source.layers, generator=world, dtype=torch.float64)
    mix *= reach.repeat_interleave(target.width, 0).repeat_interleave(source.width, 1) ** 3
    shift = 3 * torch.randn(mix_size[0], generator=world, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(batch * tokens, mix_size[1], generator=draw, dtype=torch.float64) + 2
    x[:, : mix_size[1] // 2] *= 5
    noise = torch.randn(batch * tokens, mix_size[0], generator=draw, dtype=torch.float64)
    y = x @ mix.T + shift + (1 + seed % 3) * noise
    return KVPair(_kv(x, source, batch), _kv(y, target, batch))


def _kv(table: Tensor, shape: KVShape, batch: int) -> KV:
    parts = table.view(batch, -1, 2, *shape).permute(2, 3, 0, 4, 1, 5).contiguous()
    return KV(parts[0], parts[1])


def table(kv: KV) -> Tensor:
    """All rows ``[R, 2 * L * H * D]`` in float64."""
    return rows(kv, slice(None), slice(None), torch.empty(0, dtype=torch.float64))


def moments_of(*pairs: KVPair) -> Moments:
    result = Moments.zeros(pairs[0].source.shape, pairs[0].target.shape)
    for each in pairs:
        result.update(each)
    return result


def calibration(fit: KVPair, selection: KVPair) -> Calibration:
    return Calibration(moments_of(fit), moments_of(selection))


def brute_r2(predicted: Tensor, exact: Tensor, head_dim: int) -> Tensor:
    """Per head from rows ``[R, O]``, in the plainest way."""
    sse = (predicted - exact).square().sum(0).view(-1, head_dim).sum(1)
    sst = (exact - exact.mean(0)).square().sum(0).view(-1, head_dim).sum(1)
    return 1 - sse / sst
