"""Early stopping on the selection documents, for families that take gradient steps."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping


class SelectionStopping(EarlyStopping):
    """Stops when ``selection/loss`` no longer falls; at rest for closed-form families.

    Args:
        patience: Epochs without improvement before training stops.
    """

    def __init__(self, patience: int = 2) -> None:
        super().__init__("selection/loss", mode="min", patience=patience)

    def _should_skip_check(self, trainer: L.Trainer) -> Any:
        gradient = getattr(trainer.lightning_module, "gradient", False)
        return not gradient or super()._should_skip_check(trainer)
