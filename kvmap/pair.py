"""A pair of models: the source, whose cache we have, and the target, whose cache we want."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from kvmap import loading
from kvmap.errors import KVMapError
from kvmap.identity import Identity, config_digest, folder_digest, tokenizer_digest
from kvmap.kv import KVShape
from kvmap.rope import Rotary
from kvmap.skeleton import attention_scaling, kv_shape, text_config

Direction = Literal["source_to_target", "target_to_source"]


@dataclass(frozen=True)
class ModelSpec:
    """Which model, and where and how it runs.

    Attributes:
        model: a hub id, a folder, or ``embedded:source`` / ``embedded:target``.
        revision: a branch, tag or commit of a hub model.
        dtype: ``auto`` (the checkpoint's own), ``float32``, ``bfloat16`` or ``float16``.
        device: ``cpu``, ``cuda:0`` …

    Raises:
        KVMapError: when no model is named.
    """

    model: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse a model that is not named, as ``pair=custom`` leaves it."""
        if not self.model:
            raise KVMapError(
                "a model of the pair is not named; set pair.source.model and pair.target.model, "
                "each to a hub id or a local folder"
            )


class Side:
    """One model of a pair. Everything is read on first use, the weights only by :meth:`load`."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    @cached_property
    def whole_config(self) -> PretrainedConfig:
        """The configuration as the checkpoint has it."""
        return loading.load_config(self.spec.model, self.spec.revision)

    @property
    def config(self) -> PretrainedConfig:
        """The text configuration."""
        return text_config(self.whole_config)

    @cached_property
    def shape(self) -> KVShape:
        """Layers, KV heads and head dim, from the configuration."""
        return kv_shape(self.config)

    @property
    def query_heads(self) -> int:
        """G."""
        return int(self.config.num_attention_heads)

    @cached_property
    def rotary(self) -> Rotary:
        """The model's rotary embedding, built without weights.

        Raises:
            KVMapError: for a rotation that cannot be taken off.
        """
        return Rotary(self.config)

    @cached_property
    def attention_scaling(self) -> float:
        """The factor on q·k inside the softmax (not YaRN's factor, which is in the keys)."""
        return attention_scaling(self.config)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer beside the model."""
        return loading.load_tokenizer(self.spec.model, self.spec.revision)

    @cached_property
    def tokenizer_digest(self) -> str:
        """Hash of what decides the tokenizer's ids."""
        return tokenizer_digest(self.tokenizer)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that :meth:`load` gives."""
        return loading.torch_dtype(self.spec.dtype, self.config)

    def load(self) -> PreTrainedModel:
        """The model on its device, in evaluation mode and without gradients.

        Not kept: the caller owns it, and memory is free again when the caller lets go.

        Raises:
            KVMapError: when model or device cannot be had.
        """
        spec = self.spec
        return loading.load_model(
            spec.model, spec.revision, self.whole_config, self.dtype, spec.device
        )

    @property
    def weights_are_here(self) -> bool:
        """Whether :meth:`load` would need no download."""
        return loading.weights_are_here(self.spec.model, self.spec.revision)

    def identity(self) -> Identity:
        """What this side is, in plain values."""
        return self._identity

    @cached_property
    def _identity(self) -> Identity:
        folder = loading.folder(self.spec.model)
        if folder is not None:
            revision = folder_digest(folder)
            embedded = self.spec.model.startswith(loading.PREFIX)
            model = self.spec.model if embedded else "folder"
        else:
            commit = getattr(self.whole_config, "_commit_hash", None)
            revision, model = commit or self.spec.revision or "main", self.spec.model
        return Identity(
            model=model,
            revision=revision,
            dtype=str(self.dtype).removeprefix("torch."),
            tokenizer=self.tokenizer_digest,
            shape=self.shape,
            config=config_digest(self.config),
        )


class ModelPair:
    """Two models with one tokenizer, and the direction in which KV is mapped.

    Args:
        name: a short name for folders and tables.
        source: the model whose cache we have.
        target: the model whose cache we want.
        direction: ``target_to_source`` swaps the two, which trains the reverse mapper.

    Raises:
        KVMapError: for an unknown direction.
    """

    def __init__(
        self,
        name: str,
        source: ModelSpec,
        target: ModelSpec,
        direction: Direction = "source_to_target",
    ) -> None:
        if direction not in ("source_to_target", "target_to_source"):
            raise KVMapError(
                f"pair.direction={direction} is unknown; "
                "choose source_to_target or target_to_source"
            )
        if direction == "target_to_source":
            source, target = target, source
        self.name = name
        self.direction = direction
        self.source = Side(source)
        self.target = Side(target)
