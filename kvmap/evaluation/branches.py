"""Many short runs after parts of one cached prefix, in a single forward.

All branches lie in one sequence; a mask keeps each from seeing what is not its own. So a dozen
look-ups in one document, or four continuations of one prompt, share the prefix's memory and one
pass through the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvmap import cache as caches
from kvmap.kv import KV


@dataclass(frozen=True)
class Branch:
    """Tokens run after the beginning of a prefix.

    Attributes:
        ids: ``[n]`` tokens, at least one.
        start: Position of the first.
        kept: Tokens of the prefix that it sees, from the first.
        parent: Index of an earlier branch, all of whose tokens it sees too.
        wanted: Of how many last tokens logits are wanted.
    """

    ids: Tensor
    start: int
    kept: int
    parent: int | None = None
    wanted: int = 1


@torch.no_grad()
def run(model: PreTrainedModel, prefix: KV | None, branches: Sequence[Branch]) -> list[Tensor]:
    """Run branches.

    Args:
        model: Whose KV the prefix is.
        prefix: Rotated KV ``[L, 1, H, T, D]``, None for nothing.
        branches: What to run.

    Returns:
        For each branch the logits ``[wanted, V]`` of its last tokens, float32 on the CPU.
    """
    held = max((branch.kept for branch in branches), default=0)
    if held and (prefix is None or prefix.tokens < held):
        raise ValueError(f"a branch wants {held} tokens of a prefix that is shorter")
    cache = caches.empty()
    if held and prefix is not None:
        cache = caches.write(prefix.select_tokens(slice(0, held)))
    lengths = torch.tensor([len(branch.ids) for branch in branches])
    ends = lengths.cumsum(0)
    wanted = torch.cat(
        [torch.arange(end - branch.wanted, end) for branch, end in zip(branches, ends, strict=True)]
    )
    device = model.device
    logits = caches.forward(
        model,
        torch.cat([branch.ids for branch in branches])[None].to(device),
        cache,
        torch.cat([b.start + torch.arange(len(b.ids)) for b in branches]).to(device),
        wanted.to(device),
        visible(branches, held).to(device),
    )
    return list(logits[0].float().cpu().split([branch.wanted for branch in branches]))


def visible(branches: Sequence[Branch], held: int) -> Tensor:
    """``[n, held + n]``: which tokens of prefix and branches each token sees."""
    lengths = torch.tensor([len(branch.ids) for branch in branches])
    owner = torch.repeat_interleave(torch.arange(len(branches)), lengths)
    family = torch.eye(len(branches), dtype=torch.bool)
    for index, branch in enumerate(branches):
        if branch.parent is not None:
            family[index] |= family[branch.parent]
    place = torch.arange(len(owner))
    # An ancestor stands before its descendants, so that order within a line is order in time.
    own = family[owner][:, owner] & (place[None] <= place[:, None])
    kept = torch.tensor([branch.kept for branch in branches])[owner]
    return torch.cat((torch.arange(held)[None] < kept[:, None], own), dim=1)
