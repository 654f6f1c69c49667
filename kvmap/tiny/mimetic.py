"""A structured start: attention that looks for its like, and two heads that begin as recall.

Trained transformers have query-key products close to a multiple of the identity, and value-output
products too; starting there spares a plateau (mimetic initialisation, Trockman & Kolter 2023,
https://arxiv.org/abs/2305.09828). Recall of "who has what" needs two steps of attention, each
useless without the other, and small models did not find them in three million tokens. So the
first two layers start with a rough form of them, which training is free to use or drop:

1. every position looks for the latest name and writes it down;
2. a position looks for values whose position has written down the same name, and copies them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM

EMBEDDING_STD = 0.12  # at 0.02 the rare words' embeddings soon point the same way
LIKENESS = 0.7  # of a query head's weights to its key head's; the rest is its own
COPY = 0.15  # of what a head looks at, written back to the residual stream
SHARPNESS = 1.6  # of the two steps: scale of normalised queries and of keys
NEAR_PAIRS = (2, 3, 4)  # rotary pairs that fade within some tens of tokens
FAR_PAIRS = tuple(range(6, 16))  # rotary pairs that hardly turn within a document


@dataclass(frozen=True)
class WordClasses:
    """Token ids of names [n] and of values [m]."""

    names: Tensor
    values: Tensor


@torch.no_grad()
def initialise(model: Qwen3ForCausalLM, classes: WordClasses) -> None:
    """Set embeddings and attention matrices, in place.

    Args:
        model: a freshly built model; its feed-forward layers stay as they are.
        classes: which tokens are names and values.
    """
    config = model.config
    width, hidden = config.head_dim, config.hidden_size
    heads = config.num_key_value_heads
    if heads is None:
        raise ValueError("the configuration states no number of KV heads")
    group = config.num_attention_heads // heads
    for layer in model.model.layers:
        attention = layer.self_attn
        keys, values = torch.randn(2, heads, width, hidden) / hidden**0.5
        own = torch.randn(heads, group, width, hidden) / hidden**0.5
        queries = LIKENESS * keys[:, None] + (1 - LIKENESS**2) ** 0.5 * own
        scale = COPY * hidden / (heads * group * width)
        outputs = values.mT[:, None].expand(-1, group, -1, -1) * scale
        attention.k_proj.weight.copy_(keys.flatten(0, 1))
        attention.v_proj.weight.copy_(values.flatten(0, 1))
        attention.q_proj.weight.copy_(queries.flatten(0, 2))
        attention.o_proj.weight.copy_(outputs.permute(2, 0, 1, 3).flatten(1))
    _recall(model, classes, group, width, hidden)


def _recall(
    model: Qwen3ForCausalLM, classes: WordClasses, group: int, width: int, hidden: int
) -> None:
    """Make the first KV head of the first two layers the two steps of recall."""
    basis = torch.linalg.qr(torch.randn(hidden, hidden)).Q
    always, name, value, room = basis[:, 0], basis[:, 1], basis[:, 2], basis[:, 3 : 3 + width].T
    table = model.model.embed_tokens.weight
    nn.init.normal_(table, std=EMBEDDING_STD)
    unit = EMBEDDING_STD * hidden**0.5
    table += 0.5 * unit * always
    table[classes.names] += 0.7 * unit * name
    table[classes.values] += 0.7 * unit * value
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    for attention in (first, second):
        attention.q_norm.weight.fill_(SHARPNESS)
        attention.k_norm.weight.fill_(SHARPNESS)
    near = torch.zeros(width)
    near[list(NEAR_PAIRS)] = 1.0
    noise = 0.02 * torch.randn(2, width, hidden)
    first.q_proj.weight[: group * width] = (torch.outer(near, always) + noise[0]).repeat(group, 1)
    first.k_proj.weight[:width] = torch.outer(near, name) + 0.1 * noise[1] * hidden**0.5
    first.v_proj.weight[:width] = room
    # What is written must outweigh the embeddings that it joins: 2 units, shared by the group.
    first.o_proj.weight[:, : group * width] = (room.T * (2 * EMBEDDING_STD / group)).repeat(
        1, group
    )
    far = torch.zeros(width, width)
    slots = [*FAR_PAIRS[1:], *(pair + width // 2 for pair in FAR_PAIRS[1:])]
    far[slots] = torch.randn(len(slots), width) / width**0.5
    flag = torch.zeros(width)
    flag[FAR_PAIRS[0]] = 2.0
    match = far @ room
    second.q_proj.weight[: group * width] = (match + torch.outer(flag, always)).repeat(group, 1)
    second.k_proj.weight[:width] = match + torch.outer(flag, value)
    second.v_proj.weight[:width] = torch.linalg.qr(torch.randn(hidden, width)).Q.T
    second.o_proj.weight[:, : group * width] = (
        second.v_proj.weight[:width].T * (4 * EMBEDDING_STD / group)
    ).repeat(1, group)
