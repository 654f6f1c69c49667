"""From a source's cache to a target's: rotation off, mapper, the target's rotation on."""

from torch import Tensor

from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair, Side

CHUNK_TOKENS = {"cpu": 256}  # mapped KV of so many tokens stays in the processor's cache


def map_rotated(pair: ModelPair, mapper: Mapper, rotated: KV, positions: Tensor) -> KV:
    """Map KV as the source's cache holds it to KV as the target's cache wants it.

    Args:
        pair: Whose rotary embeddings to take off and put on.
        mapper: A fitted mapper of this pair, on the device of the KV.
        rotated: The source's KV ``[L_s, B, H_s, T, D_s]``.
        positions: ``[T]`` positions of the tokens.

    Returns:
        The target's rotated KV ``[L_t, B, H_t, T, D_t]`` in the dtype the target runs in.
    """
    layers, heads, dim = pair.target.shape
    size = (layers, rotated.keys.shape[1], heads, rotated.tokens, dim)
    out = KV(*(part.new_empty(size, dtype=pair.target.dtype) for part in rotated))
    map_into(pair.source, pair.target, mapper, rotated, positions, out)
    return out


def map_into(
    source: Side, target: Side, mapper: Mapper, rotated: KV, positions: Tensor, out: KV
) -> None:
    """:func:`map_rotated` into memory that is there already, ``[L_t, B, H_t, T, D_t]``.

    In chunks of tokens on a CPU, each rotated and written while it is warm.
    """
    step = CHUNK_TOKENS.get(rotated.keys.device.type, max(rotated.tokens, 1))
    for start in range(0, rotated.tokens, step):
        chunk = slice(start, start + step)
        there, here, at = rotated.select_tokens(chunk), out.select_tokens(chunk), positions[chunk]
        keys = source.rotary.strip(there.keys.float(), at)
        mapped = mapper(KV(keys, there.values.float()))
        target.rotary.apply(mapped.keys, at, out=here.keys)
        here.values.copy_(mapped.values)
