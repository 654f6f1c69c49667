"""Two small random models with one tokenizer, which most tests share."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["OMP_NUM_THREADS"] = "1"  # in commands that tests start, too; tests run side by side

import signal
from pathlib import Path

import pytest
import torch
from commands import Workshop
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from kvmap.pair import ModelPair, ModelSpec

torch.set_num_threads(1)

TEXT = (
    "the red door of the old house stands open and anna keeps a blue cup near the green box",
    "in the morning ben takes three keys to the market and sells seven plates to a tall man",
)


def pytest_configure() -> None:
    """Hear Ctrl-C also where the shell told its background jobs not to."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def make_tokenizer(texts: tuple[str, ...] = TEXT) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of a few hundred tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )


def save_qwen3(folder: Path, seed: int, layers: int, hidden: int) -> Path:
    """A random Qwen3 model, KV heads 2 x head dim 16, saved with the tokenizer."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=384,  # padded beyond the tokenizer's, as real models do
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.1,  # with the usual 0.02 attention would be nearly uniform
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def source_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source of 3 layers, hidden size 32."""
    return save_qwen3(tmp_path_factory.mktemp("source"), seed=1, layers=3, hidden=32)


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of 4 layers, hidden size 48."""
    return save_qwen3(tmp_path_factory.mktemp("target"), seed=2, layers=4, hidden=48)


@pytest.fixture
def random_pair(source_folder: Path, target_folder: Path) -> ModelPair:
    """The pair of the two random models, float32 on CPU."""
    return ModelPair(
        name="random",
        source=ModelSpec(str(source_folder), dtype="float32"),
        target=ModelSpec(str(target_folder), dtype="float32"),
    )


@pytest.fixture(scope="module")
def shop(
    source_folder: Path, target_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Workshop:
    """A corpus and a collection for the commands, one for each file of tests."""
    return Workshop(tmp_path_factory.mktemp("shop"), source_folder, target_folder)
