"""From a source's cache to a target's: rotation off, mapper, the target's rotation on."""

from torch import Tensor

from kvmap.kv import KV
from kvmap.mappers.base import Mapper
from kvmap.pair import ModelPair


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
    keys = pair.source.rotary.strip(rotated.keys.float(), positions)
    mapped = mapper(KV(keys, rotated.values.float()))
    keys = pair.target.rotary.apply(mapped.keys, positions)
    return KV(keys, mapped.values).to(pair.target.dtype)
