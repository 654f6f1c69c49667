"""What the tests of collecting and of the data module share: a corpus file and small settings."""

import random
from pathlib import Path

from kvmap.corpora.file import File
from kvmap.data import KVPairDataModule
from kvmap.pair import ModelPair
from kvmap.recipe import DocumentCounts

TEXT = "the red door of an old house anna keeps blue cups near green boxes ben takes keys"


def write_corpus(path: Path) -> Path:
    """Two hundred texts of a hundred words."""
    draw = random.Random(0)
    path.write_text("\n\n".join(" ".join(draw.choices(TEXT.split(), k=100)) for _ in range(200)))
    return path


def data_module(pair: ModelPair, corpus: Path, root: Path, **options: object) -> KVPairDataModule:
    """Six fit, three selection and three development documents of 48 tokens, several shards."""
    settings = {
        "length": 48,
        "stride": 4,
        "documents": DocumentCounts(6, 3, 3),
        "queries": 5,
        "shard_rows": 24,
        "collect_batch_size": 2,
    }
    return KVPairDataModule(pair, File(str(corpus)), root, **settings | options)
