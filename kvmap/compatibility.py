"""What of two models fits together, what only learned mappers can bridge, and what is refused."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvmap import cache, loading
from kvmap.errors import KVMapError
from kvmap.kv import KVShape
from kvmap.pair import ModelPair, Side
from kvmap.rope import rope_type
from kvmap.shift import SHIFT, require_strippable
from kvmap.skeleton import skeleton

Fit = Literal["yes", "learned mappers only", "no"]

MATCHED = "matched"
LEARNED = "learned mappers only"
FULL = "full_attention"


class Fact(NamedTuple):
    """One row of the table: a fact of both models, and whether a mapper can live with it."""

    name: str
    source: str
    target: str
    fits: Fit = "yes"


class Finding(NamedTuple):
    """What one side shows of a fact; ``refusal`` is the reason against it, if there is one."""

    shown: str
    refusal: str | None = None


@dataclass(frozen=True)
class Compatibility:
    """The comparison of a pair.

    Attributes:
        facts: the rows of the table.
        verdict: ``matched``, ``learned mappers only``, or ``refused: <reason>``.
    """

    facts: tuple[Fact, ...]
    verdict: str

    @property
    def refused(self) -> bool:
        """Whether no mapper family serves the pair."""
        return self.verdict.startswith("refused")

    def require(self) -> None:
        """Go on only with a pair that some mapper family serves.

        Raises:
            KVMapError: with the reason for refusal.
        """
        if self.refused:
            raise KVMapError(self.verdict)


def compare(pair: ModelPair, probe: bool = False) -> Compatibility:
    """Compare a pair's configurations, tokenizers and caches.

    The cache's shapes come from three tokens through each model built without weights, so that it
    is quick for any size.

    Args:
        pair: the two models.
        probe: also load the weights that are on this machine, one model after the other, for the
            three tokens and the shift test; nothing is downloaded for it.

    Raises:
        KVMapError: when a configuration or tokenizer cannot be had.
    """
    source, target = pair.source, pair.target
    shapes = (source.shape, target.shape)
    facts = [
        Fact("model type", source.config.model_type, target.config.model_type),
        Fact("layers", str(shapes[0].layers), str(shapes[1].layers)),
        _equal("KV heads", shapes[0].heads, shapes[1].heads),
        _equal("head dim", shapes[0].head_dim, shapes[1].head_dim),
        Fact("vocabulary", str(source.config.vocab_size), str(target.config.vocab_size)),
    ]
    digests = (source.tokenizer_digest, target.tokenizer_digest)
    same = digests[0] == digests[1]
    facts.append(Fact("tokenizer", *digests, "yes" if same else "no"))
    reasons = [] if same else [_tokenizers_differ(pair)]
    for name, finding in (
        ("attention", _attention),
        ("rotary", _rotary),
        ("cache per layer", _cache_without_weights),
    ):
        found = (finding(source), finding(target))
        facts.append(_fact(name, *found))
        reasons += _reasons(found)
        if reasons and finding is not _cache_without_weights and any(f.refusal for f in found):
            break  # what follows asks for a cache that this model does not keep
    else:
        if probe:
            runs = (_with_weights(source), _with_weights(target))
            facts.append(_fact("cache with weights", runs[0][0], runs[1][0]))
            facts.append(_fact(f"keys at p and p+{SHIFT}", runs[0][1], runs[1][1]))
            reasons += _reasons((runs[0][0], runs[1][0])) + _reasons((runs[0][1], runs[1][1]))
    if reasons:
        return Compatibility(tuple(facts), f"refused: {reasons[0]}")
    matched = shapes[0][1:] == shapes[1][1:]
    return Compatibility(tuple(facts), MATCHED if matched else LEARNED)


def _equal(name: str, source: int, target: int) -> Fact:
    fits: Fit = "yes" if source == target else "learned mappers only"
    return Fact(name, str(source), str(target), fits)


def _fact(name: str, source: Finding, target: Finding) -> Fact:
    fits: Fit = "no" if source.refusal or target.refusal else "yes"
    return Fact(name, source.shown, target.shown, fits)


def _reasons(found: tuple[Finding, Finding]) -> list[str]:
    return [
        f"the {side} cannot be used: {finding.refusal}"
        for side, finding in zip(("source", "target"), found, strict=True)
        if finding.refusal
    ]


def _tokenizers_differ(pair: ModelPair) -> str:
    sides = (pair.source, pair.target)
    hashes = " and ".join(f"{side.spec.model} has {side.tokenizer_digest}" for side in sides)
    return (
        f"the two models have different tokenizers ({hashes}), so one token is not the same text "
        "for both; choose two models of one family"
    )


def _attention(side: Side) -> Finding:
    kinds = cache.attention_kinds(side.config)
    shown = ", ".join(f"{_plain(kind)} x {n}" for kind, n in Counter(kinds).items())
    others = sorted({_plain(kind) for kind in kinds} - {_plain(FULL)})
    if not others:
        return Finding(shown)
    return Finding(
        shown,
        f"model type '{side.config.model_type}' has {' and '.join(others)} attention, which does "
        "not keep keys and values of every token; choose a model with full attention in all layers",
    )


def _plain(kind: str) -> str:
    """Kind names as people say them: ``sliding-window`` for ``sliding_attention``."""
    word = kind.removesuffix("_attention").replace("_", "-")
    return {"sliding": "sliding-window", "latent": "latent (MLA)"}.get(word, word)


def _rotary(side: Side) -> Finding:
    try:
        kind = rope_type(side.config)
        rotary = side.rotary
    except KVMapError as error:
        return Finding("cannot be stripped", str(error))
    theta = side.config.rope_parameters.get("rope_theta")
    share = "" if rotary.rotated == side.shape.head_dim else f", {rotary.rotated} dims"
    return Finding(f"{kind}, theta {theta:g}{share}")


def _cache_without_weights(side: Side) -> Finding:
    try:
        layers = cache.probe(skeleton(side.config))
    except (RuntimeError, NotImplementedError) as error:  # an operation without a meta version
        return Finding(f"not seen without weights ({type(error).__name__})")
    return _judge(layers, side.shape)


def _judge(layers: list[cache.LayerProbe], shape: KVShape) -> Finding:
    kept = Counter((layer.keys, layer.values) for layer in layers)
    shown = ", ".join(f"K {keys} V {values} x {n}" for (keys, values), n in kept.items())
    expected = (shape.heads, shape.head_dim)
    if kept == Counter({(expected, expected): shape.layers}):
        return Finding(f"{shape.heads} x {shape.head_dim}, K and V, x {shape.layers}")
    return Finding(
        shown,
        f"its cache holds {shown} (heads, dim) where the configuration promises {expected} in "
        f"{shape.layers} layers; choose a model whose layers all keep plain keys and values",
    )


def _with_weights(side: Side) -> tuple[Finding, Finding]:
    if not side.weights_are_here:
        absent = Finding("not run: weights are not on this machine")
        return absent, absent
    try:
        loading.torch_device(side.spec.device)
    except KVMapError as error:
        absent = Finding(f"not run: {str(error).partition(';')[0]}")
        return absent, absent
    model = side.load()
    layers = _judge(cache.probe(model), side.shape)
    if layers.refusal:
        return layers, Finding("not run")
    try:
        return layers, Finding(f"differ by {require_strippable(model, side.rotary):.1e}")
    except KVMapError as error:
        return layers, Finding("differ", str(error))
