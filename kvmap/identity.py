"""What a model and its tokenizer are, as plain values that two machines agree on."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from kvmap.kv import KVShape

MEBIBYTE = 2**20
VOLATILE = ("_name_or_path", "transformers_version", "dtype", "architectures")


@dataclass(frozen=True)
class Identity:
    """One side of a pair in plain values, for fingerprints and for files that outlive a run.

    Attributes:
        model: the hub id or ``embedded:…``; ``folder`` for any local folder, since what a folder
            holds decides, not where it lies.
        revision: the resolved commit of a hub model, or the hash of a folder's contents.
        dtype: the dtype the model runs in.
        tokenizer: hash of what decides the tokenizer's ids.
        shape: layers, KV heads, head dim.
        config: hash of the text configuration.
    """

    model: str
    revision: str
    dtype: str
    tokenizer: str
    shape: KVShape
    config: str


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of what decides the ids of a text: vocabulary, merges, normaliser, splitting, additions.

    Equal for two folders that hold one tokenizer, whatever their names, chat templates, limits or
    padding are. A vocabulary that a model pads is not the tokenizer's and plays no part.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _digest([type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())])
    content = json.loads(backend.to_str())
    parts = {part: content.get(part) for part in ("model", "normalizer", "pre_tokenizer")}
    template = content.get("post_processor")
    added = [
        [token["id"], token["content"], token["single_word"], token["lstrip"], token["rstrip"]]
        for token in content.get("added_tokens", [])
    ]
    return _digest([parts, template, sorted(added)])


def config_digest(config: PretrainedConfig) -> str:
    """Hash of a text configuration without what does not change the model's numbers."""
    values = config.to_diff_dict()
    return _digest({key: value for key, value in values.items() if key not in VOLATILE})


def folder_digest(folder: Path) -> str:
    """Hash of a folder's weights and configuration.

    Files up to 64 MiB are read whole. Of a larger weight file the size and the first and last MiB
    are read: the first holds the names, shapes and places of the tensors (the safetensors header).
    Two versions of a large file that differ only in between would therefore look alike.
    """
    files = [folder / "config.json"]
    files += sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    digest = hashlib.sha256()
    for file in files:
        if not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}\n".encode())
        with file.open("rb") as stream:
            if size <= 64 * MEBIBYTE:
                digest.update(stream.read())
            else:
                digest.update(stream.read(MEBIBYTE))
                stream.seek(size - MEBIBYTE)
                digest.update(stream.read())
    return digest.hexdigest()[:16]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
