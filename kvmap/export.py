"""An export: the self-describing folder that is served. Data only, nothing in it is executed."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from huggingface_hub import HfApi, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from kvmap.errors import KVMapError
from kvmap.families import family_class
from kvmap.identity import Identity
from kvmap.jsonfile import read_json, write_json
from kvmap.kv import KVShape
from kvmap.mappers.base import Mapper
from kvmap.model_card import model_card
from kvmap.pair import ModelPair, Side
from kvmap.provenance import Provenance

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
EVIDENCE, GUARD = "evidence.json", "guard.json"
FILES = [CONFIG, WEIGHTS, CARD, EVIDENCE, GUARD]


@dataclass(frozen=True)
class ExportConfig:
    """What stands in an export's ``config.json``.

    Attributes:
        family: The mapper's family, a module of :mod:`kvmap.mappers`.
        arguments: Its constructor's arguments, plain values.
        pair: The pair's name.
        direction: ``source_to_target`` or ``target_to_source``.
        source: The source model that it was fitted on.
        target: The target model that it was fitted on.
        collection: Fingerprint of the KV pairs that it was fitted on.
        metrics: Development diagnostics and ``fit_seconds``; None where undefined.
        weights_sha256: Digest of ``model.safetensors``.
        provenance: What made it.
        refined_from: Digest of the weights that a refinement started from; None without one.
        format: Version of this layout.
    """

    family: str
    arguments: dict[str, Any]
    pair: str
    direction: str
    source: Identity
    target: Identity
    collection: str
    metrics: dict[str, float | None]
    weights_sha256: str
    provenance: Provenance
    refined_from: str | None = None
    format: int = FORMAT

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read ``config.json`` of an export's folder.

        Raises:
            KVMapError: The file is missing, not JSON, or of another version.
        """
        path = folder / CONFIG
        values = read_json(path, "an export's config.json")
        if not isinstance(values, dict) or "family" not in values:
            raise KVMapError(f"{path} does not describe an export; name a run's export/ folder")
        if values.get("format") != FORMAT:
            raise KVMapError(
                f"{path} has format {values.get('format')}, this kvmap reads {FORMAT}; "
                "export the mapper again or install the kvmap that wrote it"
            )
        try:
            for side in ("source", "target"):
                shape = KVShape(*values[side].pop("shape"))
                values[side] = Identity(shape=shape, **values[side])
            values["provenance"] = Provenance(**values["provenance"])
            return cls(**values)
        except (AttributeError, KeyError, TypeError) as error:
            raise KVMapError(f"{path} is damaged ({error}); export the mapper again") from error


def save_export(
    mapper: Mapper,
    folder: Path,
    *,
    pair: str,
    direction: str,
    source: Identity,
    target: Identity,
    collection: str,
    metrics: Mapping[str, float | None],
    refined_from: str | None = None,
) -> ExportConfig:
    """Write ``config.json``, ``model.safetensors`` and a model card.

    Args:
        mapper: A fitted mapper.
        folder: Where to; made when missing, an export in it is replaced.
        pair: The pair's name.
        direction: The pair's direction.
        source: The source model's identity.
        target: The target model's identity.
        collection: The collection's fingerprint.
        metrics: What was measured, for the card.
        refined_from: Digest of the weights that a refinement started from.

    Raises:
        KVMapError: A weight is not finite: the mapper was not fitted.
    """
    weights = {name: t.detach().cpu().contiguous() for name, t in mapper.state_dict().items()}
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise KVMapError(
                f"{mapper.family}: {name} holds numbers that are not finite; fit it first, "
                "with a larger ridge_lambda or a smaller lr if it was"
            )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt", "family": mapper.family})
    config = ExportConfig(
        family=mapper.family,
        arguments=dict(mapper.hparams),
        pair=pair,
        direction=direction,
        source=source,
        target=target,
        collection=collection,
        metrics=dict(metrics),
        weights_sha256=_sha256(folder / WEIGHTS),
        provenance=Provenance(),
        refined_from=refined_from,
    )
    (folder / CARD).write_text(model_card(config), encoding="utf-8")
    write_json(folder / CONFIG, asdict(config))  # last: a folder with it is whole
    return config


def load_mapper(
    path_or_hub_id: str | Path, pair: ModelPair | None = None, revision: str | None = None
) -> Mapper:
    """Load an exported mapper, ready to map; no code that came with it is run.

    Args:
        path_or_hub_id: An export's folder, a run's folder, or a hub id.
        pair: The models that it is to serve; None checks nothing.
        revision: Branch, tag or commit of a hub id.

    Returns:
        The mapper in evaluation mode on the CPU, with :attr:`Mapper.export` set.

    Raises:
        KVMapError: No export is there, it is damaged, or it does not fit the pair.
    """
    folder = find_export(path_or_hub_id, revision)
    config = ExportConfig.read(folder)
    if pair is not None:
        _require_side("source", config.source, pair.source)
        _require_side("target", config.target, pair.target)
    weights_path = folder / WEIGHTS
    if not weights_path.is_file() or _sha256(weights_path) != config.weights_sha256:
        raise KVMapError(
            f"{weights_path} is missing or not the file that {CONFIG} speaks of; "
            "export the mapper again"
        )
    family = family_class(config.family)
    try:
        mapper = family(**config.arguments)
    except (TypeError, ValueError) as error:
        raise KVMapError(
            f"{folder / CONFIG} has arguments that a {config.family} mapper does not take "
            f"({error}); export the mapper again"
        ) from error
    try:
        mapper.load_state_dict(load_file(weights_path), strict=True)
    except (RuntimeError, SafetensorError) as error:
        raise KVMapError(
            f"{weights_path} does not hold a {config.family} mapper of this shape; "
            "export the mapper again"
        ) from error
    mapper.exported = config
    return mapper.eval().requires_grad_(False)


def find_export(path_or_hub_id: str | Path, revision: str | None = None) -> Path:
    """The folder of an export: itself, a run's ``export/``, or a hub repository's snapshot."""
    path = Path(path_or_hub_id)
    for folder in (path, path / "export"):
        if (folder / CONFIG).is_file():
            return folder
    if path.exists():
        raise KVMapError(
            f"{path} holds no export ({CONFIG} is missing); name a run's folder or its export/"
        )
    try:
        return Path(snapshot_download(str(path_or_hub_id), revision=revision, allow_patterns=FILES))
    except Exception as error:  # huggingface_hub raises a dozen unrelated classes here
        raise KVMapError(
            f"{path_or_hub_id} is neither a folder here nor a hub repository that can be read "
            f"({type(error).__name__}); check the path, the id, or the network"
        ) from error


def push_export(folder: Path, repo: str, private: bool = True) -> str:
    """Upload an export to the hub and return its address.

    Raises:
        KVMapError: The folder is no export, or the hub refuses.
    """
    ExportConfig.read(folder)
    try:
        api = HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        return str(api.upload_folder(folder_path=folder, repo_id=repo, allow_patterns=FILES))
    except Exception as error:  # huggingface_hub raises a dozen unrelated classes here
        raise KVMapError(
            f"{repo} cannot be written ({type(error).__name__}); log in with `hf auth login` and "
            "check the name and the network"
        ) from error


def _require_side(side: str, fitted: Identity, served: Side) -> None:
    """Refuse an export that was fitted on another model than the one it is to serve."""
    facts = (
        ("KV shape", tuple(fitted.shape), tuple(served.shape)),
        ("tokenizer", fitted.tokenizer, served.tokenizer_digest),
        ("config", fitted.config, served.identity().config),
        ("weights", fitted.revision, served.identity().revision),
    )
    for fact, expected, found in facts:
        if expected != found:
            raise KVMapError(
                f"the export was fitted on a {side} with {fact} {expected}, but {side}="
                f"{served.spec.model} has {found}; serve the pair it was fitted on, or fit anew"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
