"""Run both models over a corpus once, and keep their paired KV and its moments on disk."""

import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from kvmap.budget import FreeBytes, budget, free_bytes, require_space
from kvmap.collection import DOCUMENTS, Collection
from kvmap.compatibility import compare
from kvmap.corpora.base import Corpus
from kvmap.errors import KVMapError
from kvmap.manifest import NAME, Manifest, Store
from kvmap.packing import pack, require_documents
from kvmap.pair import ModelPair
from kvmap.recipe import COLLECTED, CollectedSplit, Recipe, shard_name
from kvmap.running import RunningMoments, moments_name
from kvmap.shards import check_shard, write_shard
from kvmap.twin import Twin
from kvmap.undisturbed import alone, uninterrupted


def collection_folder(root: Path | str, pair: ModelPair, recipe: Recipe) -> Path:
    """Where a collection lies: the pair's name and the fingerprint of all that makes it."""
    return Path(root) / f"{pair.name}-{recipe.fingerprint}"


def collect(
    pair: ModelPair,
    corpus: Corpus,
    recipe: Recipe,
    root: Path | str,
    store: Store = "pairs",
    batch_size: int = 4,
    free: FreeBytes = free_bytes,
) -> Collection:
    """Open a collection, after collecting what of it is not there yet.

    A complete collection is opened without loading a model. Of two processes that want one
    collection, one collects and the other waits and reads. An interrupted collection goes on at
    the first shard that is not finished.

    Args:
        pair: the models.
        corpus: the texts.
        recipe: what to collect; made of this pair and corpus.
        root: the folder of collections.
        store: ``moments`` keeps no KV of the fit and selection sets, only their moments.
        batch_size: documents that a model runs at once; changes rounding at most.
        free: tells the free bytes of a disk.

    Returns:
        The complete collection.

    Raises:
        KVMapError: for a pair that does not fit together, a corpus or disk that is too small, a
            damaged shard, documents beyond the models' positions.
    """
    folder = collection_folder(root, pair, recipe)
    if not _complete(folder, store):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(folder.with_name(f"{folder.name}.lock")):
            if not _complete(folder, store):
                _require_positions(pair, recipe.length)
                compare(pair).require()
                folder.mkdir(exist_ok=True)
                _Collecting(pair, corpus, recipe, folder, store, batch_size, free).run()
    return Collection.open(folder)


class _Collecting:
    """One run over what is missing of a collection."""

    def __init__(
        self,
        pair: ModelPair,
        corpus: Corpus,
        recipe: Recipe,
        folder: Path,
        store: Store,
        batch_size: int,
        free: FreeBytes,
    ) -> None:
        self.pair, self.corpus, self.recipe = pair, corpus, recipe
        self.folder, self.store, self.batch_size, self.free = folder, store, batch_size, free
        known = (folder / NAME).is_file()
        self.manifest = Manifest.load(folder) if known else Manifest.begin(pair, recipe)
        self.layout = Collection(folder, self.manifest).layout

    def run(self) -> None:
        """Collect, set by set, and mark the collection complete."""
        started = time.monotonic()
        cost = budget(self.recipe, self.manifest.query_heads, self.store == "pairs")
        print(f"collecting {self.folder}\n{cost}", flush=True)
        require_space(cost.bytes - self._there(), self.folder, self.free)
        self.manifest.save(self.folder)
        missing = {split: self._missing(split) for split in COLLECTED}
        documents = self._documents()
        twin = Twin(self.pair, self.batch_size)
        total = sum(self.recipe.documents.of(split) for split in COLLECTED)
        with tqdm(total=total, unit="document", desc="collecting") as bar:
            for split in COLLECTED:
                self._set(split, documents[split], missing[split], twin, bar)
        self.manifest.marked(self.store).save(self.folder)
        print(f"collected {self.folder} in {time.monotonic() - started:.0f} s", flush=True)

    def _set(
        self, split: CollectedSplit, ids: Tensor, missing: set[int], twin: Twin, bar: tqdm
    ) -> None:
        recipe = self.recipe
        running = RunningMoments(self.folder, split, recipe.source.shape, recipe.target.shape)
        positions = recipe.positions(split)
        queries = recipe.query_positions() if split == "development" else None
        try:
            for number, documents in enumerate(recipe.shards(split)):
                bar.set_postfix_str(f"{split} shard {number}")
                writing, adding = number in missing, running.wants(number)
                if writing or adding:
                    shard = twin.run(ids[documents.start : documents.stop], positions, queries)
                    with uninterrupted():
                        if writing:
                            path = self.folder / shard_name(split, number)
                            write_shard(path, shard, recipe.torch_dtype)
                        if adding:
                            running.add(number, shard.pair)
                bar.update(len(documents))
            running.finish()
        finally:
            running.save()

    def _missing(self, split: CollectedSplit) -> set[int]:
        """The shards to be written: those that are not there. A damaged one is an error."""
        if split != "development" and self.store == "moments":
            return set()
        missing = set()
        for number in range(len(self.recipe.shards(split))):
            path = self.folder / shard_name(split, number)
            if path.is_file():
                check_shard(path, self.layout(split, number))
            else:
                missing.add(number)
        return missing

    def _documents(self) -> dict[CollectedSplit, Tensor]:
        """Token ids of every set; packed once and kept, so that a resumed run reads the same."""
        path = self.folder / DOCUMENTS
        if path.is_file():
            reader = Collection(self.folder, self.manifest)
            return {split: reader.documents(split) for split in COLLECTED}
        ids: dict[CollectedSplit, Tensor] = {}
        for split in COLLECTED:
            length, count = self.recipe.length, self.recipe.documents.of(split)
            packed = pack(self.corpus.documents(split), self.pair.source.tokenizer, length, count)
            require_documents(packed, split, length, count)
            ids[split] = packed.ids
        partial = path.with_name(path.name + ".partial")
        save_file({split: each.to(torch.int32) for split, each in ids.items()}, partial)
        partial.replace(path)
        return ids

    def _there(self) -> int:
        """Bytes that earlier runs have written."""
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))


def _complete(folder: Path, store: Store) -> bool:
    """Whether a collection is marked complete and no file of it was deleted since."""
    if not (folder / NAME).is_file():
        return False
    manifest = Manifest.load(folder)
    if not manifest.serves(store):
        return False
    stored = Collection(folder, manifest)
    names = [moments_name(split) for split in COLLECTED]
    names += [
        shard_name(split, number)
        for split in COLLECTED
        if stored.stores(split)
        for number in range(len(manifest.recipe.shards(split)))
    ]
    return all((folder / name).is_file() for name in names)


def _require_positions(pair: ModelPair, length: int) -> None:
    for name, side in (("source", pair.source), ("target", pair.target)):
        most = getattr(side.config, "max_position_embeddings", None)
        if most is not None and length > most:
            raise KVMapError(
                f"data.length={length} is beyond the {most} positions of the {name} model "
                f"{side.spec.model}; lower data.length"
            )
