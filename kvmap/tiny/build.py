"""The recipe of the embedded pair: `python -m kvmap.tiny.build`.

Tokenizer, a shallow model, the target grown from it, a source alone, the source distilled from the
target, the card. An interrupted recipe goes on from its last checkpoint.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config

from kvmap.tiny.card import WEIGHTS, write_card
from kvmap.tiny.english import English
from kvmap.tiny.pretrain import TOKENS_PER_BATCH, Plan, Stage, export, pretrain
from kvmap.tiny.tokenizer import CONTEXT, VOCABULARY, train_tokenizer


def architecture(layers: int, hidden: int, queries: int, inner: int) -> Qwen3Config:
    """Describe a model of the pair: Qwen3 with 4 KV heads of 32 dimensions.

    Args:
        layers: L.
        hidden: width of the residual stream.
        queries: query heads G.
        inner: width of the feed-forward layers.
    """
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=queries,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


SHALLOW = Plan(
    "shallow",
    architecture(4, 96, 8, 192),
    (Stage(128, 300, 6, 3.0), Stage(256, 900, 12, 3.0)),
    muon=0.006,
    decay=0.01,  # growing goes on from its plateau
)
TARGET = Plan(
    "target",
    architecture(16, 96, 8, 192),
    (Stage(512, 900, 24, 3.0), Stage(1024, 500), Stage(2048, 150)),
    muon=0.006,
    first_row=50_000_000,
)
ALONE = Plan(
    "source-alone",
    architecture(3, 64, 4, 128),
    (Stage(256, 1200, 12, 3.0), Stage(512, 2500, 24, 3.0), Stage(1024, 700), Stage(2048, 300)),
    muon=0.003,
    decay=0.3,
    first_row=500_000_000,
)
SOURCE = Plan(
    "source",
    ALONE.config,
    (Stage(512, 700, 24, 2.0), Stage(1024, 300), Stage(2048, 80)),
    muon=0.003,
    decay=0.5,
    distil=0.5,
    first_row=900_000_000,
)
PLANS = (SHALLOW, TARGET, ALONE, SOURCE)


def build(work: Path, weights: Path) -> None:
    """Make everything.

    Args:
        work: folder of checkpoints and logs.
        weights: where the pair goes.
    """
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(work / "tokenizer")
    shallow = pretrain(SHALLOW, tokenizer, work)
    target = pretrain(TARGET, tokenizer, work, origin=shallow).requires_grad_(False)
    alone = pretrain(ALONE, tokenizer, work)
    source = pretrain(SOURCE, tokenizer, work, teacher=target, origin=alone)
    for name, model in (("source", source), ("target", target)):
        export(model, tokenizer, weights / name)
    write_training(weights)
    write_card(weights)


def write_training(weights: Path) -> None:
    """Write into the card how the models were trained."""
    card = {"training": [describe(plan) for plan in PLANS]}
    (weights / "card.json").write_text(json.dumps(card, indent=2) + "\n")


def describe(plan: Plan) -> dict[str, Any]:
    """A plan in plain values, with the tokens it takes."""
    config = plan.config
    return {
        "name": plan.name,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "query_heads": config.num_attention_heads,
        "inner": config.intermediate_size,
        "tokens": sum(stage.steps * max(TOKENS_PER_BATCH, stage.length) for stage in plan.stages),
        "stages": [asdict(stage) for stage in plan.stages],
        "muon": plan.muon,
        "adam": plan.adam,
        "distil": plan.distil,
        "seed": plan.seed,
    }


def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    if not folder.is_dir():
        train_tokenizer(English()).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the embedded pair.")
    parser.add_argument("--work", type=Path, default=Path("outputs/tiny"))
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # models this small run fastest so
    build(arguments.work, arguments.weights)
