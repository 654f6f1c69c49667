"""Text that grows token by token, and the one function that ends an answer."""

import random

import pytest
from conftest import make_tokenizer

from kvmap.runtime.commit import Commit
from kvmap.runtime.options import Options
from kvmap.runtime.text import GrowingText

TOKENIZER = make_tokenizer()
WORDS = ("naïve", "日本", "🙂", "the red door", "é", " box", "\n", "\ufffd", "ß→", "👩‍🚀")


def bytes_of(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


def whole(tokens: list[int]) -> str:
    return str(TOKENIZER.decode(tokens, skip_special_tokens=True))


def random_tokens(seed: int) -> list[int]:
    """Words of many bytes, cut anywhere, with bytes that never become a character."""
    dice = random.Random(seed)
    tokens: list[int] = []
    for _ in range(12):
        some = bytes_of(dice.choice(WORDS))
        tokens += some[: dice.randint(1, len(some))]
        if dice.random() < 0.2:
            tokens.append(dice.randrange(1, 256))
    return tokens


@pytest.mark.parametrize("seed", range(60))
def test_streamed_text_is_the_whole_text(seed: int) -> None:
    tokens, growing = random_tokens(seed), GrowingText(TOKENIZER)
    pieces = [growing.push(token) for token in tokens]
    assert "".join(pieces) + growing.finish() == whole(tokens)


def test_no_piece_ends_inside_a_character() -> None:
    growing = GrowingText(TOKENIZER)
    pieces = [growing.push(token) for token in bytes_of("日🙂é")]
    assert all("\ufffd" not in piece for piece in pieces)
    assert [piece for piece in pieces if piece] == ["日", "🙂", "é"]


@pytest.mark.parametrize("seed", range(40))
def test_rounds_of_any_size_commit_the_same(seed: int) -> None:
    dice, tokens = random.Random(seed), random_tokens(seed)
    text = whole(tokens)
    start = dice.randrange(len(text))
    options = Options(
        max_new_tokens=dice.randint(1, len(tokens) + 3),
        stop=(text[start : start + dice.randint(1, 4)], "日本"),
    )
    ends = {dice.choice(tokens)} if dice.random() < 0.5 else set()
    results = []
    for size in (1, 2, 5, 100):
        commit, pieces = Commit(options, ends, TOKENIZER), []
        for at in range(0, len(tokens), size):
            if commit.finish_reason is None:
                pieces.append(commit(tokens[at : at + size]))
        results.append((commit.tokens, commit.text, commit.finish_reason))
        assert "".join(piece.text for piece in pieces) == commit.text
        assert [t for piece in pieces for t in piece.tokens] == commit.tokens
    assert all(result == results[0] for result in results)
    tokens_taken, shown, _ = results[0]
    # An end token gives no text, not even the last byte of a character.
    assert any(whole(each).startswith(shown) for each in (tokens_taken, tokens_taken[:-1]))
    for stop in options.stop:
        assert stop not in shown or "\ufffd" in stop


def test_of_end_stop_and_length_the_first_in_this_order_decides() -> None:
    token = bytes_of("e")[0]
    end = Commit(Options(1, stop=("e",)), {token}, TOKENIZER)
    assert end([token]).finish_reason == "stop"
    stop = Commit(Options(1, stop=("e",)), set(), TOKENIZER)
    assert (stop([token]).finish_reason, stop.text) == ("stop", "")
    length = Commit(Options(1), set(), TOKENIZER)
    assert (length([token]).finish_reason, length.text) == ("length", "e")


def test_text_that_may_become_a_stop_string_is_held_back() -> None:
    commit = Commit(Options(50, stop=("red door",)), set(), TOKENIZER)
    tokens = bytes_of("the red box")
    pieces = [commit([token]).text for token in tokens]
    assert not any(piece.endswith("red") for piece in pieces)
    assert "".join(pieces).startswith("the red b")


def test_an_end_token_gives_no_text_but_releases_what_was_held() -> None:
    commit = Commit(Options(50, stop=("red door",)), {0}, TOKENIZER)
    commit(bytes_of("the red"))
    assert commit.text == "the "
    assert commit([0]).text == "red"
    assert commit.tokens[-1] == 0


def test_a_stop_string_inside_the_bytes_of_a_character_never_matches() -> None:
    commit = Commit(Options(50, stop=("\ufffd",)), set(), TOKENIZER)
    commit(bytes_of("日本"))
    assert (commit.text, commit.finish_reason) == ("日本", None)
