"""Copies between devices: what is tested at the start, and what happens when they lie."""

import pytest
import torch
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.runtime.transfer import Link

CPU = torch.device("cpu")


def test_one_device_needs_no_copies() -> None:
    link = Link(CPU, CPU)
    assert link.local
    link.self_test()


def test_direct_copies_that_lie_are_replaced_by_staged_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Link.send

    def lying(self: Link, tensor: Tensor, into: Tensor) -> None:
        honest(self, tensor, into)
        if not self.staged:
            into[-1] += 1

    monkeypatch.setattr(Link, "send", lying)
    link = Link(CPU, CPU, force=True)
    link.self_test()
    assert link.staged


def test_no_faithful_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "send", lambda self, tensor, into: None)
    with pytest.raises(KVMapError, match="arrive changed"):
        Link(CPU, CPU, force=True).self_test()


@pytest.mark.multi_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("staged", [False, True])
def test_copies_between_cards_are_faithful(staged: bool) -> None:
    link = Link(torch.device("cuda:0"), torch.device("cuda:1"))
    link.self_test()
    link.staged = staged
    assert link._faithful(1 << 24)
