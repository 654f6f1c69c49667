"""Configuration, tokenizer and weights of one model, from the hub or a folder.

Whether the network is asked is left to ``HF_HUB_OFFLINE``, as everywhere with transformers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import is_accelerate_available

from kvmap.errors import KVMapError

EMBEDDED = Path(__file__).parent / "tiny" / "weights"
PREFIX = "embedded:"


def resolve(model: str) -> str:
    """Where transformers finds a model: a hub id as it is, or a folder's path.

    Raises:
        KVMapError: for a folder that is not there.
    """
    if model.startswith(PREFIX):
        folder = EMBEDDED / model.removeprefix(PREFIX)
        known = folder.parent == EMBEDDED and (folder / "config.json").is_file()
        if not known:
            raise KVMapError(
                f"there is no embedded model '{model}'; the ones there are: embedded:source, "
                "embedded:target (python -m kvmap.tiny.build makes them)"
            )
        return str(folder)
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path)
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise KVMapError(f"there is no folder '{model}'; give a folder that is there, or a hub id")
    return model


def folder(model: str) -> Path | None:
    """The folder a model lies in, None for a model of the hub."""
    path = Path(resolve(model))
    return path if path.is_dir() else None


def torch_dtype(name: str, config: PretrainedConfig) -> torch.dtype:
    """The dtype called ``name``; ``auto`` is the checkpoint's own.

    Raises:
        KVMapError: for a name that is no floating dtype.
    """
    dtype = (getattr(config, "dtype", None) or torch.float32) if name == "auto" else name
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise KVMapError(f"dtype '{name}' is unknown; choose auto, float32, bfloat16 or float16")
    return found


def torch_device(name: str) -> torch.device:
    """The device called ``name``.

    Raises:
        KVMapError: for a device that this machine does not have.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        count = torch.cuda.device_count()
        raise KVMapError(
            f"there is no device '{name}' on this machine (CUDA devices: {count}); "
            "set pair.source.device and pair.target.device, for example to cpu"
        ) from error
    return device


def load_config(model: str, revision: str | None) -> PretrainedConfig:
    """The whole configuration, with what a model of images wraps around its text part."""
    with _told_plainly(model, "configuration"):
        return AutoConfig.from_pretrained(resolve(model), revision=revision)


def load_tokenizer(model: str, revision: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer that stands beside the model."""
    with _told_plainly(model, "tokenizer"):
        return AutoTokenizer.from_pretrained(resolve(model), revision=revision)


def load_model(
    model: str, revision: str | None, config: PretrainedConfig, dtype: torch.dtype, device: str
) -> PreTrainedModel:
    """The model in evaluation mode, frozen, on its device.

    A dtype given at load keeps the rotary frequencies in float32, unlike a cast afterwards.
    """
    place = torch_device(device)
    causal = type(config) in AutoModelForCausalLM._model_mapping
    auto = AutoModelForCausalLM if causal else AutoModelForImageTextToText
    direct = {"device_map": {"": place}} if is_accelerate_available() else {}
    with _told_plainly(model, "model"):
        loaded = auto.from_pretrained(resolve(model), revision=revision, dtype=dtype, **direct)
    return nn.Module.to(loaded, place).eval().requires_grad_(False)


def weights_are_here(model: str, revision: str | None) -> bool:
    """Whether loading would need no download."""
    place = folder(model)
    if place is None:
        try:
            place = Path(snapshot_download(model, revision=revision, local_files_only=True))
        except (OSError, ValueError):
            return False
    return any(place.glob("*.safetensors")) or any(place.glob("*.bin"))


@contextmanager
def _told_plainly(model: str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise KVMapError(
            f"the {what} of '{model}' cannot be loaded ({reason}); check the id or folder and the "
            "revision, run once with a network and without HF_HUB_OFFLINE, log in with "
            "`hf auth login` where the model is gated, or name a folder that holds it"
        ) from error
