"""Library messages that are no news to whoever runs a command, switched off in one place."""

import logging
import os
import warnings

EXPECTED = (
    ".*configure_optimizers. returned .None.*",  # closed-form families have no optimiser
    ".*number of training batches.*smaller than the logging interval.*",
    ".*IterableDataset. has .__len__. defined.*",
    ".*treespec, LeafSpec.*",
    ".*does not have many workers.*",
    ".*Checkpoint directory .* exists and is not empty.*",  # a resumed run
)


def quiet() -> None:
    """Leave of Lightning, transformers and HTTP clients what a user must act upon."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in EXPECTED:
        warnings.filterwarnings("ignore", message=message)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
