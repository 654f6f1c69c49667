"""Additive sufficient statistics of paired KV: one pass over the tokens serves every linear fit.

A row is one token: ``x`` all the source's KV of it, ``y`` all the target's. The moments of all
rows hold, as sub-blocks, the normal equations of every choice of source layers, inputs and lambda,
and the score of every affine map on those rows.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple, Self

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.features import rows, take
from kvmap.kv import KVPair, KVShape

# Blocks that stay in the cache of a CPU, and in memory that the allocator reuses.
BLOCK_ROWS = 512
CUDA_BLOCK_ROWS = 8192


@dataclass
class Moments:
    """Sums over N rows, with features ordered (kind, layer, head, dim), keys before values.

    Attributes:
        source: the source's shape; X = 2 * L_s * H_s * D_s.
        target: the target's shape; Y = 2 * L_t * H_t * D_t.
        n: number of rows, N.
        sum_x: ``[X]`` sum of x.
        sum_y: ``[Y]`` sum of y.
        xx: ``[X, X]`` sum of x xᵀ.
        xy: ``[X, Y]`` sum of x yᵀ.
        yy: ``[Y]`` sum of y².
    """

    source: KVShape
    target: KVShape
    n: int
    sum_x: Tensor
    sum_y: Tensor
    xx: Tensor
    xy: Tensor
    yy: Tensor

    @classmethod
    def zeros(
        cls,
        source: KVShape,
        target: KVShape,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Moments of no rows."""
        x, y = 2 * source.layers * source.width, 2 * target.layers * target.width
        shapes = ((x,), (y,), (x, x), (x, y), (y,))
        sums = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        return cls(source, target, 0, *sums)

    @staticmethod
    def memory_bytes(source: KVShape, target: KVShape) -> int:
        """Bytes of the moments of a pair in float64, known before anything is run."""
        x, y = 2 * source.layers * source.width, 2 * target.layers * target.width
        return 8 * (x + 2 * y + x * x + x * y)

    @torch.no_grad()
    def update(self, pair: KVPair) -> None:
        """Add the rows of a batch in place; batches of a thousand rows or more are efficient.

        On the CPU the products run in the dtype of the sums (float64). On a GPU each block is
        centred, multiplied in true float32 and added to the sums in their dtype, the means by
        rank-one terms: so rounding is relative to the variance of a feature, never to its mean.

        Args:
            pair: KV ``[L, B, H, T, D]`` of the same tokens; content keys.

        Raises:
            KVMapError: the pair's shapes are not those of these moments.
        """
        if (pair.source.shape, pair.target.shape) != (self.source, self.target):
            raise KVMapError(
                f"moments of {self.source} and {self.target} cannot take KV of {pair.source.shape} "
                f"and {pair.target.shape}; make the collection again for this pair"
            )
        _, batch, _, tokens, _ = pair.source.keys.shape
        block = CUDA_BLOCK_ROWS if self.xx.is_cuda else BLOCK_ROWS
        documents = max(1, block // tokens)
        for first in range(0, batch, documents):
            for start in range(0, tokens, block):
                where = slice(first, first + documents), slice(start, start + block)
                self._add(rows(pair.source, *where, self.xx), rows(pair.target, *where, self.xx))

    def _add(self, x: Tensor, y: Tensor) -> None:
        count = x.shape[0]
        sum_x, sum_y = x.sum(0), y.sum(0)
        if x.is_cuda:
            mean_x, mean_y = sum_x / count, sum_y / count
            x, y = (x - mean_x).float(), (y - mean_y).float()
            with _ieee_float32():
                self.xx += x.T @ x
                self.xy += x.T @ y
            self.xx.addr_(sum_x, mean_x)
            self.xy.addr_(sum_x, mean_y)
            self.yy += y.square().sum(0, dtype=self.yy.dtype) + sum_y * mean_y
        else:
            self.xx.addmm_(x.T, x)
            self.xy.addmm_(x.T, y)
            self.yy += y.square_().sum(0)
        self.sum_x += sum_x
        self.sum_y += sum_y
        self.n += count

    def __add__(self, other: "Moments") -> "Moments":
        """Moments of both sets of rows: shards and ranks merge by addition."""
        if (self.source, self.target) != (other.source, other.target):
            raise KVMapError(
                f"moments of {self.source} and {self.target} cannot be merged with those of "
                f"{other.source} and {other.target}; merge only shards of one pair"
            )
        names = [field.name for field in fields(self)[2:]]
        return Moments(
            self.source, self.target, *(getattr(self, f) + getattr(other, f) for f in names)
        )

    def centred(self, x: Tensor | None = None, y: Tensor | None = None) -> "CentredMoments":
        """Sums about the rows' means, e.g. Σ x xᵀ - N x̄ x̄ᵀ, of all features or of some.

        Args:
            x: ``[K]`` source columns, whole layers of a kind; all without.
            y: ``[O]`` target columns, likewise; all without.

        Raises:
            KVMapError: fewer than two rows, or a number that is not finite.
        """
        if self.n < 2:
            raise KVMapError(
                f"a fit needs at least 2 calibration rows and got {self.n}; collect more documents"
            )
        wide, out = self.source.width, self.target.width
        sum_x, sum_y = take(self.sum_x, 0, x, wide), take(self.sum_y, 0, y, out)
        if not (sum_x.isfinite().all() and sum_y.isfinite().all()):
            raise KVMapError(
                "the calibration moments hold NaN or infinity; collect again with a wider dtype"
            )
        mean_x, mean_y, yy = sum_x / self.n, sum_y / self.n, take(self.yy, 0, y, out)
        return CentredMoments(
            self.n,
            mean_x,
            mean_y,
            torch.addr(take(take(self.xx, 0, x, wide), 1, x, wide), sum_x, mean_x, alpha=-1),
            take(take(self.xy, 1, y, out), 0, x, wide),
            (yy - sum_y * mean_y).clamp_(min=0),
            yy,
        )

    def save(self, path: Path | str) -> None:
        """Write a safetensors file; an interrupted write leaves no file of that name."""
        path = Path(path)
        sums = {f.name: getattr(self, f.name).contiguous() for f in fields(self)[3:]}
        shapes = {"source": self.source, "target": self.target, "n": (self.n,)}
        meta = {name: ",".join(map(str, numbers)) for name, numbers in shapes.items()}
        partial = path.with_name(path.name + ".partial")
        save_file(sums, partial, metadata=meta)
        os.replace(partial, path)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            KVMapError: the file is missing or damaged.
        """
        try:
            with safe_open(str(path), framework="pt") as file:
                meta = file.metadata()
                source, target, (n,) = (
                    [int(number) for number in meta[name].split(",")]
                    for name in ("source", "target", "n")
                )
                sums = [file.get_tensor(field.name) for field in fields(cls)[3:]]
        except Exception as error:
            raise KVMapError(
                f"cannot read the moments {Path(path).name} ({error}); "
                "delete the file and collect again"
            ) from error
        return cls(KVShape(*source), KVShape(*target), n, *sums)


class CentredMoments(NamedTuple):
    """Sums of products about the means of N rows, of K source and O target columns.

    Attributes:
        n: number of rows, N.
        mean_x: ``[K]``.
        mean_y: ``[O]``.
        xx: ``[K, K]`` Σ (x - x̄)(x - x̄)ᵀ.
        raw_xy: ``[K, O]`` Σ x yᵀ, not centred: the largest of them, so a view where it can be;
            :meth:`times_xy` multiplies by its centred form.
        yy: ``[O]`` Σ (y - ȳ)², the total sum of squares of each output.
        raw_yy: ``[O]`` Σ y², to tell variance from rounding.
    """

    n: int
    mean_x: Tensor
    mean_y: Tensor
    xx: Tensor
    raw_xy: Tensor
    yy: Tensor
    raw_yy: Tensor

    def times_xy(self, left: Tensor) -> Tensor:
        """``left`` ``[M, K]`` times Σ (x - x̄)(y - ȳ)ᵀ, ``[M, O]``."""
        return (left @ self.raw_xy).addr_(left @ self.mean_x, self.mean_y, alpha=-self.n)


class Calibration(NamedTuple):
    """What a closed-form fit reads: rows to fit on, and rows of other documents to choose on."""

    fit: Moments
    selection: Moments


@contextmanager
def _ieee_float32() -> Iterator[None]:
    """Within it, float32 products keep all their bits (no TF32)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
