"""Mapper: what every family shares. A family adds one tensor function and how it learns."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvmap.kv import KV, KVBatch, KVPair, KVShape
from kvmap.measured import Measured
from kvmap.moments import Calibration

if TYPE_CHECKING:
    from kvmap.export import ExportConfig


class Mapper(Measured, ABC):
    """Maps the source's content KV to the target's, token by token.

    A family implements :meth:`forward`, learns in :meth:`calibrate` (closed form, from moments)
    and, with ``gradient = True``, in :meth:`loss` (gradient steps over rows of the fit set).

    Because a mapper works token by token, mapping a prompt in chunks equals mapping it at once.

    Args:
        source: The source's KV shape, or its three numbers.
        target: The target's KV shape, or its three numbers.

    Attributes:
        epochs: Passes over the fit rows; 1 for a closed form.
        batch_size: Fit rows per gradient step.
        exported: What the export says that this mapper was loaded from.
    """

    _anchor: Tensor
    epochs: int = 1
    batch_size: int = 1

    def __init__(self, source: Sequence[int], target: Sequence[int]) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.source_shape = KVShape(*source)
        self.target_shape = KVShape(*target)
        # Plain lists: a checkpoint must load without unpickling classes of ours.
        self.hparams.update(source=list(source), target=list(target))
        # Lightning counts steps, and so saves checkpoints, only when a loss can be differentiated.
        self.register_buffer("_anchor", torch.zeros((), requires_grad=True), persistent=False)
        self.exported: ExportConfig | None = None

    @property
    def family(self) -> str:
        """The family's name: that of its module."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def weights(self) -> int:
        """How many numbers an export of this mapper holds."""
        return sum(tensor.numel() for tensor in self.state_dict().values())

    @abstractmethod
    def forward(self, source: KV) -> KV:
        """Map KV ``[L_s, B, H_s, T, D_s]`` to ``[L_t, B, H_t, T, D_t]``; content keys, both."""

    def calibrate(self, calibration: Calibration) -> None:
        """Learn what has a closed form from the moments; nothing by default."""

    def loss(self, pair: KVPair) -> Tensor:
        """Loss of a batch of rows, ``[L, 1, H, rows, D]``; only for gradient families."""
        raise NotImplementedError(f"{type(self).__name__} takes no gradient steps")

    # Lightning's hooks, in the order in which they run.

    def setup(self, stage: str) -> None:
        """Prepare the metrics and do the closed-form part, before a checkpoint is restored."""
        if stage != "fit":
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self.measure_on(data.collection)
        started = time.perf_counter()
        self.calibrate(data.calibration())
        self.fit_seconds += time.perf_counter() - started

    def configure_optimizers(self) -> Any:
        """No optimiser unless a family has one."""
        return None

    def training_step(self, batch: KVPair | Tensor, _: int) -> Tensor:
        """One gradient step, or nothing for a closed form."""
        if not isinstance(batch, KVPair):
            return self._anchor * 0.0
        loss = self.loss(batch)
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: KVBatch, _: int, dataloader_idx: int = 0) -> None:
        """Measure development documents; of selection documents a gradient family logs its loss."""
        if dataloader_idx == 0:
            self.measure(self(batch.pair.source), batch)
        else:
            loss = self.loss(batch.pair)
            self.log("selection/loss", loss, add_dataloader_idx=False, batch_size=1, prog_bar=True)
