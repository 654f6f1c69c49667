"""One shard: the KV of a few documents in a safetensors file, whole or not there at all."""

import os
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.kv import KV, KVPair, KVShape


class Shard(NamedTuple):
    """What a shard holds.

    Attributes:
        pair: content KV ``[L, B, H, T, D]`` of both models.
        queries: the target's rotated queries ``[L_t, B, G, Q, D_t]``; None outside development.
    """

    pair: KVPair
    queries: Tensor | None = None


class ShardLayout(NamedTuple):
    """What a shard must hold.

    Attributes:
        source: the source's shape.
        target: the target's shape.
        documents: B.
        tokens: T.
        queries: ``(G, Q)``; None outside development.
        dtype: of everything stored.
    """

    source: KVShape
    target: KVShape
    documents: int
    tokens: int
    queries: tuple[int, int] | None
    dtype: torch.dtype

    def shapes(self) -> dict[str, list[int]]:
        """Each stored tensor's name and shape."""
        shapes = {
            f"{side}_{kind}": [
                shape.layers,
                self.documents,
                shape.heads,
                self.tokens,
                shape.head_dim,
            ]
            for side, shape in (("source", self.source), ("target", self.target))
            for kind in ("keys", "values")
        }
        if self.queries is not None:
            layers, _, dim = self.target
            shapes["queries"] = [layers, self.documents, *self.queries, dim]
        return shapes

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        shapes = self.shapes().values()
        return sum(torch.Size(shape).numel() for shape in shapes) * self.dtype.itemsize


def write_shard(path: Path, shard: Shard, dtype: torch.dtype) -> None:
    """Write a shard in the storage dtype; an interrupted write leaves no file of that name.

    Raises:
        KVMapError: the disk is full, or a number is not finite in the storage dtype.
    """
    (source, target), queries = shard
    named = {
        "source_keys": source.keys,
        "source_values": source.values,
        "target_keys": target.keys,
        "target_values": target.values,
    }
    if queries is not None:
        named["queries"] = queries
    tensors = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in named.items()}
    for name, tensor in tensors.items():
        if not _finite(tensor):
            side = name.split("_")[0].replace("queries", "target")
            raise KVMapError(
                f"the {side} model gave {name} that are not finite for {path.name}; "
                f"run it in a wider dtype (pair.{side}.dtype=float32)"
            )
    partial = path.with_name(path.name + ".partial")
    try:
        save_file(tensors, partial)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise KVMapError(
            f"cannot write {path} ({error}); free some space or set data.root to another disk, "
            "then run again: what is collected is kept"
        ) from error


def check_shard(path: Path, layout: ShardLayout) -> None:
    """See from header and length whether a shard is what it should be, without reading it.

    Raises:
        KVMapError: it is missing or damaged.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (OSError, SafetensorError) as error:
        raise _damaged(path, str(error)) from error
    if found != layout.shapes():
        raise _damaged(path, f"it holds {found}")


def read_shard(path: Path, layout: ShardLayout) -> Shard:
    """Read a shard in the dtype in which it is stored.

    Raises:
        KVMapError: it is missing or damaged, which includes numbers that are not finite.
    """
    check_shard(path, layout)
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in layout.shapes()}
    except (OSError, SafetensorError) as error:
        raise _damaged(path, str(error)) from error
    for name, tensor in tensors.items():
        if not _finite(tensor):
            raise _damaged(path, f"{name} are not all finite")
    source = KV(tensors["source_keys"], tensors["source_values"])
    target = KV(tensors["target_keys"], tensors["target_values"])
    return Shard(KVPair(source, target), tensors.get("queries"))


def _finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite, told by their sum, which NaN and infinity survive.

    Faster than a mask of every element; summed in float64, which no sum of float32 overflows.
    """
    return bool(tensor.sum(dtype=torch.float64).isfinite())


def _missing(path: Path) -> KVMapError:
    return KVMapError(f"shard {path} is missing; run again: only that shard is collected anew")


def _damaged(path: Path, reason: str) -> KVMapError:
    return KVMapError(
        f"shard {path} is damaged ({reason}); delete it and run again: "
        "only that shard is collected anew"
    )
