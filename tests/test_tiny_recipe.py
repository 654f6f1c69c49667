"""The parts that made the embedded pair, and what its English promises."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from kvmap.tiny.build import architecture
from kvmap.tiny.card import WEIGHTS
from kvmap.tiny.english import English
from kvmap.tiny.grow import grow
from kvmap.tiny.kinds import KINDS
from kvmap.tiny.mimetic import initialise
from kvmap.tiny.muon import Muon, orthogonalise
from kvmap.tiny.pretrain import Plan, Stage, pretrain
from kvmap.tiny.rows import Rows, word_classes
from kvmap.tiny.words import PEOPLE


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """The committed tokenizer."""
    return PreTrainedTokenizerFast.from_pretrained(WEIGHTS / "target")


def small(layers: int) -> Qwen3Config:
    """An architecture of the family, small enough for a test."""
    return architecture(layers=layers, hidden=48, queries=4, inner=32)


def test_a_document_does_not_depend_on_those_read_before() -> None:
    english = English(words=200)
    english.document("training", 0)
    assert english.document("test", 3) == English(words=200).document("test", 3)


def test_nothing_gives_an_answer_away_between_binding_and_question() -> None:
    # People differ in every kind, so any sight of the word, or of its hint, would be a mention.
    for index in range(20):
        document = English().document("test", index)
        for lookup in document.lookups:
            kind = next(kind for kind in KINDS if lookup.answer in kind.values)
            words = [lookup.answer]
            if kind.hints:
                words.append(kind.hints[kind.values.index(lookup.answer)])
            between = document.text[lookup.stated + len(lookup.answer) : lookup.position]
            assert not any(re.search(rf"\b{word}\b", between) for word in words)


def test_the_question_names_the_holder_before_the_answer() -> None:
    for index in range(20):
        document = English().document("test", index)
        for lookup in document.lookups:
            sentence = document.text[: lookup.position].rsplit(". ", 1)[-1]
            assert "?" in sentence
            assert any(name in sentence for name in PEOPLE)


def test_most_questions_are_far_from_the_binding() -> None:
    far = [
        lookup.position - lookup.stated > 900  # characters: some 150 tokens
        for index in range(20)
        for lookup in English().document("test", index).lookups
    ]
    assert sum(far) > 10 * 20


def test_impossible_difficulty_is_refused() -> None:
    with pytest.raises(ValueError, match="facts=5"):
        English(facts=5)


def test_names_values_and_hints_are_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    for word in [*PEOPLE, *(word for kind in KINDS for word in kind.values + kind.hints)]:
        assert len(tokenizer(f" {word}")["input_ids"]) == 1, word


def test_rows_are_full_and_the_same_every_time(tokenizer: PreTrainedTokenizerFast) -> None:
    for number in range(20):
        row = Rows(tokenizer, seed=0)(number, 64, 6)
        assert row.shape == (65,)
        assert torch.equal(row, Rows(tokenizer, seed=0)(number, 64, 6))


def test_growing_keeps_what_the_model_computes(tokenizer: PreTrainedTokenizerFast) -> None:
    classes = word_classes(tokenizer)
    shallow = Qwen3ForCausalLM(small(3)).eval()
    initialise(shallow, classes)
    deep = grow(shallow, small(7), classes).eval()
    ids = torch.arange(40)[None]
    with torch.no_grad():
        assert torch.allclose(deep(ids).logits, shallow(ids).logits, atol=1e-4)


def test_the_structured_start_looks_for_the_latest_name(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    torch.manual_seed(0)
    config = architecture(layers=4, hidden=96, queries=8, inner=192)
    config._attn_implementation = "eager"
    model = Qwen3ForCausalLM(config).eval()
    initialise(model, word_classes(tokenizer))
    ids = tokenizer(" Anna lives in Oslo. Ben lives in", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions[0][0, 0, -1]
    assert tokenizer.decode(ids[0, weights.argmax()]) == " Ben"


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 48, 128), (3, 128, 48)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.4


def test_muon_descends() -> None:
    torch.manual_seed(0)
    wanted = torch.randn(8, 12)
    matrix = torch.nn.Parameter(torch.zeros(8, 12))
    optimiser = Muon([matrix], lr=0.05)
    for _ in range(200):
        optimiser.zero_grad()
        (matrix - wanted).square().sum().backward()
        optimiser.step()
    assert (matrix - wanted).norm() < 0.2 * wanted.norm()


def test_an_interrupted_training_goes_on_to_the_same_model(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvmap.tiny.pretrain.SAVE_EVERY", 2)
    monkeypatch.setattr("kvmap.tiny.pretrain.TOKENS_PER_BATCH", 64)
    monkeypatch.setattr("torch.nn.Module.compile", lambda self: None)  # saves half a minute
    plan = Plan("small", small(2), (Stage(32, 4, 6),))
    whole = pretrain(plan, tokenizer, tmp_path / "whole")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("kvmap.tiny.pretrain.export", stop)  # right after the first checkpoint
        with pytest.raises(KeyboardInterrupt):
            pretrain(plan, tokenizer, tmp_path / "parts")
    parts = pretrain(plan, tokenizer, tmp_path / "parts")
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, parts.get_parameter(name)), name


def test_the_pair_has_matched_kv() -> None:
    source, target = (
        json.loads((WEIGHTS / side / "config.json").read_text()) for side in ("source", "target")
    )
    for key in ("num_key_value_heads", "head_dim", "vocab_size", "rope_parameters", "dtype"):
        assert source[key] == target[key]
    assert source["dtype"] == "bfloat16"
    assert source["max_position_embeddings"] >= 8192
