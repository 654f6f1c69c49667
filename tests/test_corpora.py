"""Corpora: disjoint sets, clear refusals; packing: equal lengths, nothing lost without reason."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from conftest import make_tokenizer

from kvmap.corpora.embedded import Embedded
from kvmap.corpora.file import File
from kvmap.corpora.hashed import split_of
from kvmap.corpora.hub import Hub
from kvmap.errors import KVMapError
from kvmap.packing import pack, require_documents

SPLITS = ("fit", "selection", "development", "test")


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    texts = [f"document {i} about\nthe number {i * i}" for i in range(300)]
    path.write_text("\n\n".join(texts + texts[:100]) + "\n")
    return path


def test_every_text_stands_in_exactly_one_set_even_when_it_occurs_twice(text_file: Path) -> None:
    corpus = File(str(text_file))
    sets = [list(corpus.documents(split)) for split in SPLITS]
    assert sum(map(len, sets)) == 400
    for i, one in enumerate(sets):
        assert one, "a set of 300 texts is empty"
        for other in sets[i + 1 :]:
            assert not set(one) & set(other)
    assert 180 < len(set(sets[0])) < 240, "the fit set has about 70%"


def test_spacing_and_case_do_not_move_a_text_to_another_set() -> None:
    for i in range(50):
        assert split_of(f"A  text\n{i}") == split_of(f"a text {i}")


def test_text_and_jsonl_of_the_same_texts_give_the_same_documents(text_file: Path) -> None:
    texts = list(File(str(text_file)).texts())
    other = text_file.with_suffix(".jsonl")
    other.write_text("\n\n".join(json.dumps({"text": text, "id": 1}) for text in texts))
    assert list(File(str(other)).texts()) == texts


def test_the_identity_is_of_the_bytes_and_not_of_the_place(text_file: Path) -> None:
    copy = text_file.with_name("copy.txt")
    copy.write_bytes(text_file.read_bytes())
    assert File(str(copy)).identity() == File(str(text_file)).identity()
    copy.write_bytes(text_file.read_bytes() + b"more")
    assert File(str(copy)).identity() != File(str(text_file)).identity()


def test_a_missing_file_is_named() -> None:
    for use in (lambda corpus: list(corpus.documents("fit")), lambda corpus: corpus.identity()):
        with pytest.raises(KVMapError, match=r"cannot read the corpus nowhere\.txt.*data\.path"):
            use(File("nowhere.txt"))


@pytest.mark.parametrize("content", [b"\xff\xfe\x9f\x00", b"\x00\x01\x02\x03"])
def test_a_binary_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(content * 9)
    with pytest.raises(KVMapError, match=r"not UTF-8 text|binary file"):
        list(File(str(path)).texts())


@pytest.mark.parametrize("line", ['{"body": "x"}', "not json", '{"text": 3}', "[1]", '"text"'])
def test_a_jsonl_line_without_text_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"text": "good"}}\n\n{line}\n')
    with pytest.raises(KVMapError, match="line 3 of the corpus"):
        list(File(str(path)).texts())


def test_embedded_sets_are_disjoint_and_repeatable() -> None:
    corpus = Embedded(words=64)
    sets = [list(islice(corpus.documents(split), 5)) for split in SPLITS]
    assert len({text for texts in sets for text in texts}) == 20
    assert sets[0] == list(islice(Embedded(words=64).documents("fit"), 5))


def test_embedded_identity_changes_with_each_setting() -> None:
    identities = {
        Embedded(words=64).identity(),
        Embedded(words=80).identity(),
        Embedded(words=64, seed=1).identity(),
        Embedded(words=64, facts=13).identity(),
    }
    assert len(identities) == 4


def test_hub_reads_the_field_and_refuses_another(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"content": "one"}, {"content": " "}, {"content": "two"}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
    assert list(Hub("owner/set", field="content").texts()) == ["one", "two"]
    with pytest.raises(KVMapError, match=r"no text field 'text'.*content"):
        list(Hub("owner/set").texts())


def test_a_hub_that_fails_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(KVMapError, match=r"cannot stream the corpus owner/set \(offline\)"):
        list(Hub("owner/set").texts())


def test_short_texts_are_joined_by_eos_and_nothing_is_lost_between() -> None:
    tokenizer = make_tokenizer()
    texts = ["the red door", "anna keeps", "a blue cup near the green box"]
    joined = [
        token for text in texts for token in (*tokenizer(text).input_ids, tokenizer.eos_token_id)
    ]
    packed = pack(texts, tokenizer, length=len(joined), count=3)
    assert packed.ids.tolist() == [joined]
    assert packed.tokens == len(joined)


def test_a_long_text_fills_documents_and_its_rest_is_dropped() -> None:
    tokenizer = make_tokenizer()
    long, short = "the red door of the old house " * 9, "anna keeps a blue cup near the green box"
    ids = tokenizer(long).input_ids
    packed = pack([long, short], tokenizer, length=10, count=99)
    whole = (len(ids) + 1) // 10
    assert packed.ids[:whole].flatten().tolist() == [*ids, tokenizer.eos_token_id][: 10 * whole]
    assert packed.ids[whole].tolist() == tokenizer(short).input_ids[:10]


def test_packing_reads_no_more_texts_than_it_needs() -> None:
    read = []

    def texts() -> Iterator[str]:
        while True:
            read.append(1)
            yield "the red door of the old house stands open"

    packed = pack(texts(), make_tokenizer(), length=5, count=4)
    assert packed.ids.shape == (4, 5)
    assert len(read) <= 4


def test_documents_begin_with_bos_where_the_tokenizer_puts_one() -> None:
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    assert pack(["the red door"] * 9, tokenizer, 8, 1).ids[0, 0] != tokenizer.bos_token_id

    class WithBos:
        bos_token_id, eos_token_id = 0, 0

        def __call__(self, text: str, add_special_tokens: bool = True, **_: object) -> object:
            ids = tokenizer(text).input_ids
            return type("E", (), {"input_ids": [0, *ids] if add_special_tokens else ids})

    packed = pack(["the red door of the old house"] * 9, WithBos(), 8, 2)
    assert packed.ids[:, 0].tolist() == [0, 0]
    assert packed.ids.shape == (2, 8)


@pytest.mark.parametrize(
    ("texts", "count", "sentence"),
    [
        ([], 1, "no text for the selection set"),
        (["the red door"], 1, r"tokens for the selection set and one document needs 50"),
        (["the red door of the old house " * 40], 99, r"lower data\.documents\.selection to \d+"),
    ],
)
def test_a_corpus_that_is_too_small_is_refused_with_what_it_has(
    texts: list[str], count: int, sentence: str
) -> None:
    packed = pack(texts, make_tokenizer(), 50, count)
    with pytest.raises(KVMapError, match=sentence):
        require_documents(packed, "selection", 50, count)
