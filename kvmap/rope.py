"""Take a key's rotation off, and put one on, with the model's own rotary module.

A cached key is ``a · R(p) · k``: the content key k, rotated by angles that grow with the position
p, and scaled by the attention scaling a (1 except for YaRN). Stripping multiplies by the transpose
of ``a · R(p)`` and divides by ``a²``. The module comes from the configuration alone.
"""

import json
import sys

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from kvmap.errors import KVMapError
from kvmap.kv import KVShape
from kvmap.skeleton import kv_shape, skeleton, text_config

MOVING = ("dynamic", "longrope")
"""Rotary types whose frequencies change with the length, so that a cache may hold two sets."""


class Rotary:
    """A model's rotary embedding, as two functions of keys and positions.

    Args:
        config: the model's configuration (a wrapper around its text part is unwrapped).

    Raises:
        KVMapError: when the rotation cannot be taken off: frequencies that move with the length,
            pairs of neighbouring dimensions instead of halves, layers without rotation, or a
            rotation that differs from layer to layer.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        self.config = text_config(config)
        self.shape: KVShape = kv_shape(self.config)
        self.type = rope_type(self.config)
        decoder = skeleton(self.config)
        hollow = getattr(decoder, "rotary_emb", None)
        if hollow is None:
            raise KVMapError(self._refusal("keeps its rotary embedding in an unknown place"))
        self._module = type(hollow)(self.config).eval().requires_grad_(False)
        self._check_layout(sys.modules[type(decoder).__module__])

    def apply(self, keys: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """Rotated keys from content keys.

        Args:
            keys: ``[..., T, D]``, content keys (or queries before rotation).
            positions: ``[T]``.
            out: ``[..., T, D]``, other memory than ``keys``, where to write the result.

        Returns:
            ``[..., T, D]`` in the dtype of ``keys`` (or ``out``), computed in at least float32.
        """
        cos, sin = self._tables(positions, keys)
        if out is None:
            return _rotate(keys, cos, sin)
        if out.dtype != cos.dtype or keys.dtype != cos.dtype:
            return out.copy_(_rotate(keys, cos, sin))
        return _rotate_into(keys, cos, sin, out)

    def strip(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Content keys from rotated keys, the inverse of :meth:`apply`.

        Args:
            keys: ``[..., T, D]``, as a cache holds them.
            positions: ``[T]``.

        Returns:
            ``[..., T, D]`` in the dtype of ``keys``, computed in at least float32.
        """
        cos, sin = self._tables(positions, keys)
        square = cos * cos + sin * sin  # attention scaling squared
        return _rotate(keys, cos / square, -sin / square)

    @property
    def rotated(self) -> int:
        """Dims of a head that are rotated; fewer than D with partial rotary."""
        return 2 * self._module.inv_freq.shape[-1]

    def to_json(self) -> str:
        """All that :meth:`from_json` needs to build this rotary again, without paths."""
        config = self.config.to_diff_dict()
        for key in ("_name_or_path", "transformers_version", "dtype", "architectures"):
            config.pop(key, None)
        return json.dumps(config | {"model_type": self.config.model_type}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Rotary":
        """The rotary that :meth:`to_json` described."""
        values = json.loads(text)
        return cls(AutoConfig.for_model(values.pop("model_type"), **values))

    def _tables(self, positions: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines times the attention scaling, each ``[T, rotated dims]``."""
        if keys.shape[-2] != positions.shape[0]:
            raise ValueError(f"{keys.shape[-2]} keys at {positions.shape[0]} positions")
        like = torch.empty(0, dtype=_working_dtype(keys), device=keys.device)
        with torch.no_grad():
            cos, sin = self._module(like, positions[None].to(keys.device))
        return cos[0], sin[0]

    def _check_layout(self, modelling: object) -> None:
        """Compare with the model's own function on random keys: it knows its layout."""
        keys = torch.randn(1, 1, 3, self.shape.head_dim, generator=torch.Generator().manual_seed(0))
        positions = torch.tensor([0, 1, 17])
        theirs = getattr(modelling, "apply_rotary_pos_emb", None)
        try:
            if theirs is None or getattr(self.config, "rope_interleave", False):
                raise RuntimeError("another function than the one compared here")
            cos, sin = self._tables(positions, keys)
            _, rotated = theirs(keys, keys, cos[None], sin[None])
            same = torch.allclose(rotated, self.apply(keys, positions), atol=1e-5)
        except (RuntimeError, TypeError, ValueError, AttributeError):
            same = False
        if not same:
            raise KVMapError(self._refusal("does not rotate halves of a head (interleaved rotary)"))

    def _refusal(self, fact: str) -> str:
        return f"model type '{self.config.model_type}' {fact}, which kvmap cannot strip"


def rope_type(config: PretrainedConfig) -> str:
    """The type of rotary embedding: default, linear, llama3 or yarn.

    Raises:
        KVMapError: for a rotary that kvmap refuses, named with the model type.
    """
    config = text_config(config)
    who = f"model type '{config.model_type}'"
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        raise KVMapError(f"{who} has no rotary embedding, so its keys have no position to strip")
    kind = parameters.get("rope_type")
    if kind is None:
        raise KVMapError(f"{who} rotates different layers differently, which kvmap cannot strip")
    if kind in MOVING:
        raise KVMapError(
            f"{who} uses {kind} rotary, whose frequencies change with the length; "
            "choose default, linear, llama3 or yarn rotary"
        )
    without = [
        i for i, used in enumerate(getattr(config, "no_rope_layers", None) or []) if not used
    ]
    if without:
        raise KVMapError(f"{who} has no rotary in layers {without}, which kvmap cannot strip")
    return str(kind)


def _working_dtype(keys: Tensor) -> torch.dtype:
    return torch.promote_types(keys.dtype, torch.float32)


def _rotate(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dims of each key; the rest (partial rotary) passes through."""
    rotated = cos.shape[-1]
    turning = keys[..., :rotated].to(cos.dtype)
    first, second = turning.chunk(2, dim=-1)
    turned = (turning * cos + torch.cat((-second, first), dim=-1) * sin).to(keys.dtype)
    return turned if rotated == keys.shape[-1] else torch.cat((turned, keys[..., rotated:]), dim=-1)


def _rotate_into(keys: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    """:func:`_rotate` in two passes over memory that is there already."""
    half = cos.shape[-1] // 2
    first, second, rest = keys.tensor_split((half, 2 * half), -1)
    into_first, into_second, into_rest = out.tensor_split((half, 2 * half), -1)
    torch.mul(first, cos[:, :half], out=into_first).addcmul_(second, sin[:, :half], value=-1)
    torch.mul(second, cos[:, half:], out=into_second).addcmul_(first, sin[:, half:])
    into_rest.copy_(rest)
    return out
