"""Collecting: what is stored is right, survives interruption, and is never collected twice."""

import json
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
from collecting import data_module, write_corpus
from safetensors.torch import load_file, save_file

from kvmap import collect as collecting
from kvmap import running
from kvmap.budget import budget
from kvmap.cache import prefill
from kvmap.collection import Collection
from kvmap.corpora.file import File
from kvmap.data import KVPairDataModule
from kvmap.errors import KVMapError
from kvmap.kv import KVShape
from kvmap.moments import Moments
from kvmap.pair import ModelPair, ModelSpec, Side
from kvmap.recipe import COLLECTED, DocumentCounts, Recipe
from kvmap.twin import Twin
from kvmap.undisturbed import uninterrupted


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt")


@pytest.fixture
def pair(source_folder: Path, target_folder: Path) -> ModelPair:
    return ModelPair(
        "random",
        ModelSpec(str(source_folder), dtype="float32"),
        ModelSpec(str(target_folder), dtype="float32"),
    )


@pytest.fixture
def module(pair: ModelPair, corpus: Path, tmp_path: Path) -> KVPairDataModule:
    return data_module(pair, corpus, tmp_path / "root")


def collected(module: KVPairDataModule) -> Collection:
    module.prepare_data()
    return module.collection


def files(folder: Path) -> dict[str, dict[str, list]]:
    """Every number of every file (the order of names in a header is safetensors' own affair)."""
    return {
        path.name: {name: tensor.tolist() for name, tensor in load_file(path).items()}
        for path in sorted(folder.glob("*.safetensors"))
    }


def test_stored_kv_is_the_models_own_with_the_rotation_off(module: KVPairDataModule) -> None:
    collection = collected(module)
    for side, rotary in (
        ("source", collection.source_rotary),
        ("target", collection.target_rotary),
    ):
        model = getattr(module.pair, side).load()
        for split in COLLECTED:
            positions = collection.positions(split)
            exact = prefill(model, collection.documents(split)).select_tokens(positions)
            stored = [getattr(batch.pair, side) for batch in collection.batches(split)]
            keys, values = (torch.cat(parts, dim=1) for parts in zip(*stored, strict=True))
            torch.testing.assert_close(rotary.apply(keys, positions), exact.keys)
            torch.testing.assert_close(values, exact.values)


def test_fit_is_strided_and_the_others_keep_every_token(module: KVPairDataModule) -> None:
    collection = collected(module)
    assert collection.positions("fit").tolist() == list(range(0, 48, 4))
    assert collection.positions("selection").tolist() == list(range(48))
    assert [collection.rows(split) for split in COLLECTED] == [72, 144, 144]


def test_queries_are_the_targets_own_in_the_last_three_quarters(module: KVPairDataModule) -> None:
    collection = collected(module)
    batch = next(collection.batches("development", documents=1))
    assert batch.query_positions.tolist() == [12, 21, 30, 38, 47]
    assert batch.queries.shape == (4, 1, 4, 5, 16)
    model, seen = module.pair.target.load(), []
    layer = model.get_decoder().layers[0].self_attn
    layer.q_norm.register_forward_hook(lambda _m, _i, out: seen.append(out))
    model(collection.documents("development")[:1])
    unrotated = seen[0].transpose(1, 2)[:, :, batch.query_positions]
    rotated = collection.target_rotary.apply(unrotated, batch.query_positions)
    torch.testing.assert_close(batch.queries[0], rotated, rtol=1e-4, atol=1e-5)
    assert all(each.queries is None for each in collection.batches("fit"))


def test_moments_are_of_the_stored_rows(module: KVPairDataModule) -> None:
    collection = collected(module)
    for split in COLLECTED:
        expected = Moments.zeros(collection.source_shape, collection.target_shape)
        for batch in collection.batches(split):
            expected.update(batch.pair)
        found = collection.moments(split)
        assert found.n == collection.rows(split)
        torch.testing.assert_close(found.xy, expected.xy)
        torch.testing.assert_close(found.xx, expected.xx)


def test_moments_are_taken_before_rounding_to_bfloat16(
    pair: ModelPair, corpus: Path, tmp_path: Path
) -> None:
    exact = collected(data_module(pair, corpus, tmp_path))
    rounded = collected(data_module(pair, corpus, tmp_path, dtype="bfloat16"))
    assert rounded.fingerprint != exact.fingerprint
    assert rounded.shard("fit", 0).pair.source.keys.dtype == torch.bfloat16
    assert torch.equal(rounded.moments("fit").xy, exact.moments("fit").xy)


def test_a_complete_collection_is_opened_without_a_model(
    module: KVPairDataModule, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected(module)
    monkeypatch.setattr(Side, "load", lambda self: pytest.fail("a language model was loaded"))
    again = data_module(module.pair, corpus, module.root)
    assert collected(again).moments("fit").n == 72
    assert len(list(again.collection.batches("development"))) == 3


class StopError(Exception):
    """An interruption."""


@pytest.mark.parametrize("after", [1, 2, 4, 7])
def test_an_interrupted_collection_resumes_and_ends_bit_equal(
    module: KVPairDataModule, monkeypatch: pytest.MonkeyPatch, corpus: Path, after: int
) -> None:
    straight = collected(module)
    other = data_module(module.pair, corpus, module.root.with_name("other"))
    run, count = Twin.run, [0]

    def interrupted(self: Twin, *args: object) -> object:
        count[0] += 1
        if count[0] > after:
            raise StopError
        return run(self, *args)

    monkeypatch.setattr(Twin, "run", interrupted)
    with pytest.raises(StopError):
        other.prepare_data()
    folder = collecting.collection_folder(other.root, other.pair, other.recipe)
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("*-0*.safetensors")}
    assert sum(not name.startswith("moments") for name in kept) == after
    with pytest.raises(KVMapError, match="not complete"):
        Collection.open(folder)

    count[0] = -1000
    resumed = collected(other)
    assert files(resumed.folder) == files(straight.folder)
    for name, written in kept.items():
        if not name.startswith("moments"):
            assert (folder / name).stat().st_mtime_ns == written, "a finished shard was lost"
    shards = sum(len(straight.recipe.shards(split)) for split in COLLECTED)
    assert count[0] == -1000 + shards - after, "only unfinished shards are run again"


def test_a_killed_collection_resumes_from_the_moments_last_saved(
    module: KVPairDataModule, monkeypatch: pytest.MonkeyPatch, corpus: Path
) -> None:
    straight = collected(module)
    other = data_module(module.pair, corpus, module.root.with_name("other"))
    run, count = Twin.run, [0]

    def killed(self: Twin, *args: object) -> object:
        count[0] += 1
        if count[0] == 3:
            raise StopError
        return run(self, *args)

    monkeypatch.setattr(Twin, "run", killed)
    with monkeypatch.context() as dead:
        dead.setattr(running.RunningMoments, "save", lambda self: None)
        with pytest.raises(StopError):
            other.prepare_data()
    assert files(collected(other).folder) == files(straight.folder)


def test_resumed_moments_lie_in_aligned_memory(tmp_path: Path) -> None:
    shape = KVShape(1, 1, 3)
    Moments.zeros(shape, shape).save(tmp_path / "moments-fit-of-00000.safetensors")
    moments = running.RunningMoments(tmp_path, "fit", shape, shape).moments
    assert moments.xy.data_ptr() % 64 == moments.xx.data_ptr() % 64 == 0


def test_ctrl_c_while_a_shard_is_written_waits_for_its_moments() -> None:
    done = []

    def commit() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        commit()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("damage", ["truncated", "header", "nan", "shape"])
def test_a_damaged_shard_is_named_and_alone_collected_anew(
    module: KVPairDataModule, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    collection = collected(module)
    before = files(collection.folder)
    path = collection.folder / "selection-00001.safetensors"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "header":
        path.write_bytes(b"\xff" * 4000)
    elif damage == "shape":
        tensors = load_file(path)
        save_file(tensors | {"source_keys": tensors["source_keys"][:1].clone()}, path)
    else:
        tensors = load_file(path)
        tensors["target_values"][0, 0, 0, 0, 0] = float("nan")
        save_file(tensors, path)

    def use() -> None:
        module.prepare_data()
        list(Collection.open(collection.folder).batches("selection"))

    with pytest.raises(KVMapError, match=r"selection-00001\.safetensors is damaged.*delete it"):
        use()

    path.unlink()
    with pytest.raises(KVMapError, match="is missing; run again"):
        Collection.open(collection.folder)
    runs, run = [], Twin.run
    monkeypatch.setattr(Twin, "run", lambda self, *a: runs.append(1) or run(self, *a))
    module.prepare_data()
    assert runs == [1]
    assert files(collection.folder) == before


def test_moments_only_keeps_the_same_moments_and_development_documents(
    pair: ModelPair, corpus: Path, tmp_path: Path
) -> None:
    pairs = collected(data_module(pair, corpus, tmp_path / "a"))
    lean = collected(data_module(pair, corpus, tmp_path / "b", store="moments"))
    assert lean.fingerprint == pairs.fingerprint
    assert not list(lean.folder.glob("fit-*")) + list(lean.folder.glob("selection-*"))
    for split in ("fit", "selection"):
        assert torch.equal(lean.moments(split).xy, pairs.moments(split).xy)
    assert len(list(lean.batches("development"))) == 3
    with pytest.raises(KVMapError, match=r"only moments of its fit set.*data\.store=pairs"):
        next(lean.batches("fit"))


def test_pairs_are_added_to_a_moments_only_collection(
    pair: ModelPair, corpus: Path, tmp_path: Path
) -> None:
    lean = collected(data_module(pair, corpus, tmp_path, store="moments"))
    moments = (lean.folder / "moments-fit.safetensors").stat().st_mtime_ns
    full = collected(data_module(pair, corpus, tmp_path))
    assert full.folder == lean.folder
    assert len(list(full.batches("fit"))) == 3
    assert (lean.folder / "moments-fit.safetensors").stat().st_mtime_ns == moments
    assert collected(data_module(pair, corpus, tmp_path, store="moments")).stored == "pairs"


def test_a_full_disk_is_refused_before_anything_is_run(
    module: KVPairDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Side, "load", lambda self: pytest.fail("a language model was loaded"))
    with pytest.raises(KVMapError, match=r"needs .* GiB more and .* has .* GiB free.*data\.root"):
        collecting.collect(
            module.pair, module.corpus, module.recipe, module.root, free=lambda _: 2**26
        )


def test_the_budget_is_what_the_files_take(module: KVPairDataModule) -> None:
    collection = collected(module)
    cost = budget(module.recipe, collection.query_heads, pairs=True)
    sizes = {
        split: sum(path.stat().st_size for path in collection.folder.glob(f"{split}-0*"))
        for split in COLLECTED
    }
    for each in cost.sets:
        assert 0 <= sizes[each.split] - each.bytes < 3 * 1024, "headers aside"
    moments = (collection.folder / "moments-fit.safetensors").stat().st_size
    assert 0 <= moments - cost.moments < 1024
    assert "in all" in str(cost)


def test_two_that_want_one_collection_collect_it_once(
    module: KVPairDataModule, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, load = [], Side.load
    monkeypatch.setattr(Side, "load", lambda self: loads.append(1) or load(self))
    others = [data_module(module.pair, corpus, module.root) for _ in range(2)]
    _ = [each.recipe for each in others]
    threads = [threading.Thread(target=each.prepare_data) for each in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 2, "one source and one target"
    assert others[0].collection.moments("fit").n == 72


def test_the_fingerprint_changes_with_each_ingredient(
    pair: ModelPair, corpus: Path, tmp_path: Path
) -> None:
    longer = tmp_path / "longer.txt"
    longer.write_text(corpus.read_text() + "\n\nmore")
    half = ModelSpec(pair.source.spec.model, dtype="bfloat16")
    base = data_module(pair, corpus, tmp_path)
    others = [
        data_module(pair, longer, tmp_path),
        data_module(ModelPair("random", half, pair.target.spec), corpus, tmp_path, dtype="float32"),
        data_module(ModelPair("random", pair.target.spec, pair.source.spec), corpus, tmp_path),
        data_module(
            ModelPair("random", pair.source.spec, pair.target.spec, "target_to_source"),
            corpus,
            tmp_path,
            length=47,
        ),
        data_module(pair, corpus, tmp_path, length=50),
        data_module(pair, corpus, tmp_path, stride=2),
        data_module(pair, corpus, tmp_path, queries=6),
        data_module(pair, corpus, tmp_path, dtype="bfloat16"),
        data_module(pair, corpus, tmp_path, documents=DocumentCounts(6, 3, 4)),
        data_module(pair, corpus, tmp_path, shard_rows=48),
    ]
    prints = [module.recipe.fingerprint for module in [base, *others]]
    assert len(set(prints)) == len(prints)
    same = data_module(pair, corpus, tmp_path / "elsewhere", store="moments", collect_batch_size=1)
    assert same.recipe.fingerprint == prints[0]


def test_the_fingerprint_does_not_know_where_a_model_lies(
    pair: ModelPair, corpus: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(pair.source.spec.model, tmp_path / "moved")
    other = ModelPair("other", ModelSpec(str(moved), dtype="float32"), pair.target.spec)
    prints = [data_module(each, corpus, tmp_path).recipe.fingerprint for each in (pair, other)]
    assert prints[0] == prints[1]


def test_the_manifest_is_readable_and_gives_the_recipe_back(module: KVPairDataModule) -> None:
    collection = collected(module)
    values = json.loads((collection.folder / "collection.json").read_text())
    assert values["fingerprint"] == module.recipe.fingerprint
    assert values["stored"] == "pairs"
    assert values["source_config"]["model_type"] == "qwen3"
    assert "torch" in values["provenance"]["versions"]
    assert Recipe.from_dict(values["recipe"]) == module.recipe
    assert module.pair.source.spec.model not in json.dumps(values), "no absolute path"


def test_bad_numbers_are_refused(pair: ModelPair, corpus: Path, tmp_path: Path) -> None:
    for option, value in (
        ("length", 0),
        ("stride", 0),
        ("stride", 49),
        ("queries", 0),
        ("queries", 37),
        ("dtype", "int8"),
        ("store", "nothing"),
        ("collect_batch_size", 0),
        ("val_batch_size", 0),
        ("shard_rows", 0),
    ):
        with pytest.raises(KVMapError, match=rf"data\.{option}={value}"):
            _ = data_module(pair, corpus, tmp_path, **{option: value}).recipe
    with pytest.raises(KVMapError, match=r"data\.documents\.selection=0"):
        DocumentCounts(1, 0, 1)


def test_a_length_beyond_the_models_positions_is_refused(
    pair: ModelPair, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(KVMapError, match=r"data\.length=5000 is beyond the 4096 positions"):
        data_module(pair, corpus, tmp_path, length=5000).prepare_data()


def test_a_corpus_that_is_too_small_is_refused_before_a_model_is_loaded(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Side, "load", lambda self: pytest.fail("a language model was loaded"))
    path = tmp_path / "small.txt"
    path.write_text("")
    module = data_module(pair, path, tmp_path)
    with pytest.raises(KVMapError, match="no text for the fit set"):
        module.prepare_data()
    many = write_corpus(tmp_path / "many.txt")
    module = data_module(pair, many, tmp_path, documents=DocumentCounts(6, 3, 999))
    with pytest.raises(KVMapError, match=r"lower data\.documents\.development to \d+"):
        module.prepare_data()
    assert isinstance(module.corpus, File)
