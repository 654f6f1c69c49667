"""A LightningModule that measures the diagnostics of a mapper while it learns."""

import time
from dataclasses import asdict
from typing import Any, ClassVar

import lightning as L

from kvmap.collection import Collection
from kvmap.diagnostics import DiagnosticMetrics, Diagnostics
from kvmap.kv import KV, KVBatch


class Measured(L.LightningModule):
    """Measures on the development set, logs, and keeps what a checkpoint needs to tell.

    Attributes:
        gradient: Whether it takes gradient steps.
        diagnostics: The last measured diagnostics; a checkpoint carries its own.
        fit_seconds: Time spent learning, without measuring.
    """

    gradient: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.diagnostics: Diagnostics | None = None
        self.fit_seconds = 0.0

    def measure_on(self, collection: Collection) -> None:
        """Prepare the metrics for the development documents of a collection."""
        self.metrics = DiagnosticMetrics(
            collection.target_shape,
            collection.query_heads,
            collection.target_rotary,
            collection.attention_scaling,
        )

    def measure(self, mapped: KV, batch: KVBatch) -> None:
        """Add some development documents."""
        self.metrics.update(mapped, batch)

    # Lightning's hooks, in the order in which they run.

    def on_train_epoch_start(self) -> None:
        """Start the clock: from here on time counts as learning."""
        self._learning_since = time.perf_counter()

    def on_validation_epoch_start(self) -> None:
        """Measuring is not learning: stop the clock."""
        self.fit_seconds += time.perf_counter() - self._learning_since
        self.metrics.reset()

    def on_validation_epoch_end(self) -> None:
        """Log the mean over layers of every diagnostic; keep the values per layer."""
        self.diagnostics = self.metrics.compute()
        self.log_dict(self.diagnostics.means())
        self._learning_since = time.perf_counter()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint says how good it was."""
        checkpoint["fit_seconds"] = self.fit_seconds
        if self.diagnostics is not None:
            checkpoint["diagnostics"] = asdict(self.diagnostics)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what :meth:`on_save_checkpoint` kept."""
        self.fit_seconds = checkpoint["fit_seconds"]
        if "diagnostics" in checkpoint:
            self.diagnostics = Diagnostics(**checkpoint["diagnostics"])
