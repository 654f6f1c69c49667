"""The embedded pair: its English, its tokenizer, its committed weights."""

import hashlib
import json
import re

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from kvmap.tiny.card import WEIGHTS, score
from kvmap.tiny.english import SPLITS, English
from kvmap.tiny.lookup_tokens import encode

MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(WEIGHTS / "target")


def test_a_document_is_the_same_on_every_machine() -> None:
    texts = "\0".join(English(words=300).document(split, 7).text for split in SPLITS)
    assert hashlib.sha256(texts.encode()).hexdigest().startswith("59290c3f31a0a713")


def test_splits_share_no_document() -> None:
    english = English(words=200)
    texts = [english.document(split, index).text for split in SPLITS for index in range(25)]
    assert len(set(texts)) == len(texts)


def test_a_document_is_as_long_as_asked(tokenizer: PreTrainedTokenizerFast) -> None:
    for words in (200, 1024):
        tokens = len(tokenizer(English(words=words).document("test", 0).text)["input_ids"])
        assert words <= tokens < 1.1 * words + 60


def test_a_look_up_asks_for_a_value_bound_once_before() -> None:
    for index in range(20):
        document = English(words=600).document("test", index)
        assert document.lookups
        for lookup in document.lookups:
            assert document.text[lookup.position :].startswith(lookup.answer)
            assert document.text[lookup.stated :].startswith(lookup.answer)
            assert lookup.stated < lookup.position


def test_the_wrong_choices_are_bound_to_others_in_the_same_document() -> None:
    for index in range(20):
        document = English(words=600).document("test", index)
        for lookup in document.lookups:
            assert len(set(lookup.choices)) == 4
            assert lookup.answer in lookup.choices
            before = document.text[: lookup.position]
            assert all(choice in before for choice in lookup.choices)


def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in (
        "",
        "Anna lives in Oslo.",
        "naïve — 東京 🎻\n\ttabs",
        bytes(range(1, 256)).decode("latin1"),
    ):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_nearly_every_word_is_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    text = " ".join(English(words=400).document("test", index).text for index in range(20))
    words = set(re.findall(r"\w+", text))
    single = [word for word in words if len(tokenizer(" " + word)["input_ids"]) == 1]
    assert len(single) > 0.9 * len(words)


def test_a_look_up_in_tokens_names_the_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    ids, lookups = encode(tokenizer, English(words=600).document("test", 3))
    for lookup in lookups:
        assert ids[lookup.position] == lookup.choices[lookup.right]


def test_the_pair_is_small_enough_to_ship() -> None:
    files = [path for path in WEIGHTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8 * MEBIBYTE


def test_the_target_remembers_better_than_the_source(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.set_num_threads(1)
    source, target = (
        score(
            Qwen3ForCausalLM.from_pretrained(WEIGHTS / side, dtype=torch.float32).eval(),
            tokenizer,
            English(words=700),
            documents=4,
        )[0]
        for side in ("source", "target")
    )
    assert target.nll < source.nll
    assert target.far > source.far > 0.5
    assert target.far >= 0.97


def test_the_card_says_what_was_measured_and_what_falls_short() -> None:
    card = json.loads((WEIGHTS / "card.json").read_text())
    assert [plan["name"] for plan in card["training"]] == [
        "shallow",
        "target",
        "source-alone",
        "source",
    ]
    assert len(card["criteria"]) == 8
    assert all({"name", "measured", "wanted", "met"} == set(each) for each in card["criteria"])
