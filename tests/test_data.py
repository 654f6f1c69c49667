"""The data module: shuffled rows for gradient families, documents for measuring, no models."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch
import yaml
from collecting import data_module, write_corpus
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from kvmap import row_batches
from kvmap.collection import Collection
from kvmap.data import FileDataModule, KVPairDataModule
from kvmap.errors import KVMapError
from kvmap.kv import KVBatch, KVPair
from kvmap.pair import ModelPair, ModelSpec, Side
from kvmap.row_batches import RowBatches

ROWS = 72


@pytest.fixture(scope="module")
def module(
    source_folder: Path, target_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> KVPairDataModule:
    pair = ModelPair(
        "random",
        ModelSpec(str(source_folder), dtype="float32"),
        ModelSpec(str(target_folder), dtype="float32"),
    )
    root = tmp_path_factory.mktemp("data")
    module = data_module(pair, write_corpus(root / "corpus.txt"), root / "root")
    module.prepare_data()
    return module


@pytest.fixture
def collection(module: KVPairDataModule) -> Collection:
    return module.collection


def signatures(pairs: Iterable[KVPair]) -> Tensor:
    """One number per row that tells it from all others, of source and target together."""
    parts = [
        p.source.keys[-1, :, 0, :, 0].double() * 1000 + p.target.values[-1, :, 0, :, 0].double()
        for p in pairs
    ]
    return torch.cat([part.flatten() for part in parts])


def trainer(gradient: bool, batch_size: int = 7, epoch: int = 0) -> SimpleNamespace:
    mapper = SimpleNamespace(gradient=gradient, batch_size=batch_size, family="mlp")
    return SimpleNamespace(lightning_module=mapper, current_epoch=epoch)


@pytest.mark.parametrize("memory", [1, 50_000, 2**30], ids=["shard", "two shards", "all"])
@pytest.mark.parametrize("batch_size", [5, 7, 30, 72, 1000])
def test_each_epoch_holds_every_row_once_in_another_order(
    collection: Collection, memory: int, batch_size: int
) -> None:
    epoch = [0]
    rows = RowBatches(collection, batch_size, 0, lambda: epoch[0], memory)
    stored = signatures(batch.pair for batch in collection.batches("fit")).sort().values
    orders = []
    for epoch[0] in range(2):
        batches = list(rows)
        assert len(batches) == len(rows)
        sizes = [batch.source.tokens for batch in batches]
        assert set(sizes[:-1]) <= {batch_size}
        found = signatures(batches)
        assert torch.equal(found.sort().values, stored)
        orders.append(found)
    assert not torch.equal(*orders), "the second epoch has the order of the first"
    assert len(stored.unique()) == ROWS
    again = signatures(list(RowBatches(collection, batch_size, 0, lambda: 1, memory)))
    assert torch.equal(again, orders[1]), "seed and epoch alone decide the order"


def test_source_and_target_of_a_row_stay_together(collection: Collection) -> None:
    batch = next(iter(RowBatches(collection, 9, 0, lambda: 0)))
    assert batch.source.keys.shape == (3, 1, 2, 9, 16)
    assert batch.target.values.shape == (4, 1, 2, 9, 16)
    assert all(t.is_contiguous() and t.dtype == torch.float32 for kv in batch for t in kv)
    source, target = batch.source.keys, batch.target.keys
    matched = 0
    for stored in collection.batches("fit"):
        for row in range(9):
            same = (stored.pair.source.keys == source[:, :, :, row, None]).all(-1).all(0).all(1)
            for document, token in same.nonzero().tolist():
                exact = stored.pair.target.keys[:, document, :, token]
                assert torch.equal(exact, target[:, 0, :, row])
                matched += 1
    assert matched >= 9


def test_ranks_share_the_rows_and_make_equally_many_steps(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_batches.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(row_batches.dist, "get_world_size", lambda: 3)
    parts = []
    for rank in range(3):
        monkeypatch.setattr(row_batches.dist, "get_rank", lambda rank=rank: rank)
        parts.append(list(RowBatches(collection, 5, 0, lambda: 0)))
    assert {len(part) for part in parts} == {len(parts[0])}
    together = torch.cat([signatures(part) for part in parts]).sort().values
    stored = signatures([batch.pair for batch in collection.batches("fit")]).sort().values
    assert torch.equal(together, stored)


def test_loaders_of_a_gradient_family(module: KVPairDataModule) -> None:
    module.trainer = trainer(gradient=True)
    batches = list(module.train_dataloader())
    assert sum(batch.source.tokens for batch in batches) == ROWS
    assert isinstance(batches[0], KVPair)
    development, selection = (list(loader) for loader in module.val_dataloader())
    assert all(isinstance(batch, KVBatch) for batch in development + selection)
    assert all(batch.queries is not None for batch in development)
    assert all(batch.queries is None for batch in selection)
    assert sum(batch.pair.source.keys.shape[1] for batch in selection) == 3


def test_loaders_of_a_closed_form_family(module: KVPairDataModule) -> None:
    module.trainer = trainer(gradient=False)
    assert [batch.shape for batch in module.train_dataloader()] == [()]
    assert len(module.val_dataloader()) == 1
    loader = module.val_dataloader()[0]
    assert len(loader) == len(list(loader)) == 3


def test_a_validation_batch_has_as_many_documents_as_asked(module: KVPairDataModule) -> None:
    sizes = [b.pair.source.keys.shape[1] for b in module.collection.batches("fit", documents=2)]
    assert sizes == [2, 2, 2]
    sizes = [b.pair.source.keys.shape[1] for b in module.collection.batches("fit", documents=1)]
    assert sizes == [1] * 6


def test_reading_loads_no_model(module: KVPairDataModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Side, "load", lambda self: pytest.fail("a language model was loaded"))
    again = data_module(module.pair, module.corpus.path, module.root)
    again.trainer = trainer(gradient=True)
    again.prepare_data()
    again.setup("fit")
    assert again.calibration().fit.n == ROWS
    assert again.calibration().selection.n == 144
    assert list(again.train_dataloader())
    assert again.collection.target_rotary.apply(torch.ones(1, 16), torch.tensor([3])).shape == (
        1,
        16,
    )
    assert again.collection.attention_scaling == pytest.approx(16**-0.5)
    assert again.collection.query_heads == 4


def test_a_gradient_family_needs_stored_pairs(module: KVPairDataModule, tmp_path: Path) -> None:
    lean = data_module(module.pair, module.corpus.path, tmp_path, store="moments")
    lean.trainer = trainer(gradient=True)
    lean.prepare_data()
    with pytest.raises(
        KVMapError, match=r"mapper mlp learns from stored pairs; run with data\.store=pairs"
    ):
        lean.train_dataloader()


CONFIGS = Path(__file__).parents[1] / "conf" / "data"


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_every_data_config_makes_a_data_module(
    name: str, module: KVPairDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVMAP_COLLECTIONS", "somewhere")
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS.parent)):
        more = ["data.path=corpus.txt"] if name == "file" else []
        config = compose(overrides=[f"+data={name}", "data.length=512", *more])
    data = instantiate(config.data, pair=module.pair)
    assert isinstance(data, KVPairDataModule)
    assert (data.length, data.root) == (512, Path("somewhere"))
    if name == "embedded":
        assert data.corpus.english.words >= 512


def test_the_file_config_asks_for_a_path(module: KVPairDataModule) -> None:
    with pytest.raises(KVMapError, match=r"data\.path=<file>"):
        FileDataModule(module.pair)


def test_configs_name_only_arguments_that_exist() -> None:
    shared = yaml.safe_load((CONFIGS / "shared" / "collection.yaml").read_text())
    arguments = set(KVPairDataModule.__init__.__annotations__)
    assert set(shared) - {"_target_"} <= arguments


class Watcher(L.LightningModule):
    """Learns nothing, and keeps what a trainer hands it."""

    gradient, batch_size, family = True, 16, "watcher"

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.rows: list[list[KVPair]] = []
        self.measured: list[int] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_epoch_start(self) -> None:
        self.rows.append([])

    def training_step(self, batch: KVPair, _: int) -> Tensor:
        self.rows[-1].append(batch)
        return self.weight * 0.0

    def validation_step(self, batch: KVBatch, _: int, dataloader_idx: int = 0) -> None:
        self.measured.append(dataloader_idx)


def test_a_trainer_gets_every_row_in_each_epoch(module: KVPairDataModule) -> None:
    watcher = Watcher()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_model_summary=False,
        **quiet,
    )
    lightning.fit(watcher, datamodule=module)
    first, second = (signatures(rows) for rows in watcher.rows)
    assert len(first) == len(second) == ROWS
    assert torch.equal(first.sort().values, second.sort().values)
    assert not torch.equal(first, second)
    assert watcher.measured == [0, 0, 0, 1, 1, 1] * 2
