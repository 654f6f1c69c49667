"""Conversations at rest."""

import pytest
import torch

from kvmap.buffer import Buffer
from kvmap.kv import KVShape
from kvmap.runtime.session import Caches, Session, SessionKey, Sessions

KEY = SessionKey("mapped", "s", "t", "m", "r", "d")


def caches(tokens: int = 8) -> Caches:
    return Caches(None, Buffer(KVShape(1, 1, 4), tokens, torch.float32, torch.device("cpu")))


def test_the_longest_common_beginning_is_found_less_the_last_prompt_token() -> None:
    kept = Sessions(10**6)
    for tokens in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 9]):
        kept.keep(Session(KEY, tokens, caches()))
    found = kept.find(KEY, [1, 2, 3, 4, 5, 6])
    assert found is not None
    assert (found.common, found.whole) == (5, True)
    found = kept.find(KEY, [1, 2, 3])
    assert found is not None
    assert (found.common, found.whole) == (2, False)
    assert kept.find(KEY, [7, 8]) is None
    assert kept.find(KEY, [1]) is None


@pytest.mark.parametrize("field", SessionKey._fields)
def test_kv_made_otherwise_is_never_reused(field: str) -> None:
    kept = Sessions(10**6)
    kept.keep(Session(KEY, [1, 2, 3], caches()))
    assert kept.find(KEY._replace(**{field: "other"}), [1, 2, 3, 4]) is None  # type: ignore[arg-type]
    assert kept.find(KEY, [1, 2, 3, 4]) is not None


def test_a_continued_session_is_taken_out_and_another_stays() -> None:
    kept = Sessions(10**6)
    kept.keep(Session(KEY, [1, 2, 3], caches()))
    assert kept.find(KEY, [1, 2, 9, 9]) is not None
    assert kept.bytes > 0
    assert kept.find(KEY, [1, 2, 3, 4]) is not None
    assert kept.bytes == 0


def test_the_least_recently_used_goes_first() -> None:
    size = caches().bytes
    kept = Sessions(2 * size)
    for tokens in ([1, 1], [2, 2]):
        kept.keep(Session(KEY, tokens, caches()))
    kept.find(KEY, [1, 1, 1])  # taken out …
    kept.keep(Session(KEY, [1, 1, 1], caches()))  # … and kept again
    kept.keep(Session(KEY, [3, 3], caches()))
    assert kept.find(KEY, [2, 2, 2]) is None
    assert kept.find(KEY, [1, 1, 1, 1]) is not None
    assert kept.bytes <= 2 * size
    none = Sessions(0)
    none.keep(Session(KEY, [1, 2], caches()))
    assert none.bytes == 0
