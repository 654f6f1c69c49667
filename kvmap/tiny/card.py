"""What the pair can do, measured on the test documents: `python -m kvmap.tiny.card`."""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from kvmap.tiny.english import English
from kvmap.tiny.lookup_tokens import encode

WEIGHTS = Path(__file__).parent / "weights"
FAR = 150  # tokens between binding and question
WINDOW = 64  # tokens that a model may see when the far end is taken away


@dataclass(frozen=True)
class Criterion:
    """One thing the pair should do, and whether it does."""

    name: str
    measured: float
    wanted: str
    met: bool


@dataclass(frozen=True)
class Scores:
    """One model on the test documents.

    Attributes:
        nll: nats/token over whole documents.
        far: share of four-way look-ups answered right at `FAR` tokens or more.
        near: the same below that distance.
        window: share answered right from the last `WINDOW` tokens alone.
        questions: number of far look-ups.
    """

    nll: float
    far: float
    near: float
    window: float
    questions: int


@torch.no_grad()
def score(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    english: English,
    documents: int,
    split: str = "test",
) -> tuple[Scores, Tensor]:
    """Measure one model.

    Args:
        model: in evaluation mode.
        tokenizer: the pair's.
        english: which documents.
        documents: how many of the split.
        split: whose documents.

    Returns:
        The scores, and the greedy choice at every token of all documents.
    """
    nll, tokens, choices = 0.0, 0, []
    hits: dict[str, list[bool]] = {"far": [], "near": [], "window": []}
    for index in range(documents):
        ids, lookups = encode(tokenizer, english.document(split, index))
        logits = model(input_ids=ids[None]).logits[0].float()
        nll += F.cross_entropy(logits[:-1], ids[1:], reduction="sum").item()
        tokens += len(ids) - 1
        choices.append(logits.argmax(-1))
        for position, distance, four, right in lookups:
            best = logits[position - 1, list(four)].argmax().item()
            hits["far" if distance >= FAR else "near"].append(best == right)
            if distance >= FAR:
                seen = ids[None, position - WINDOW : position]
                last = model(input_ids=seen, logits_to_keep=1).logits[0, -1, list(four)]
                hits["window"].append(last.argmax().item() == right)
    shares = {name: sum(values) / max(len(values), 1) for name, values in hits.items()}
    return Scores(nll / tokens, **shares, questions=len(hits["far"])), torch.cat(choices)


@torch.no_grad()
def nll_with_context(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    context: int,
    documents: int,
    scored: int = 32,
) -> float:
    """NLL of tokens 1,024 to 1,055 of test documents, given only the `context` before them.

    Args:
        model: in evaluation mode.
        tokenizer: the pair's.
        context: tokens that the model sees first.
        documents: how many test documents.
        scored: how many tokens are scored.
    """
    english, total = English(words=1024 + scored + 64), 0.0
    for index in range(documents):
        ids, _ = encode(tokenizer, english.document("test", index))
        piece = ids[1024 - context : 1024 + scored]
        logits = model(input_ids=piece[None, :-1], logits_to_keep=scored).logits[0].float()
        total += F.cross_entropy(logits, piece[-scored:]).item()
    return total / documents


@torch.no_grad()
def times_ms(model: Qwen3ForCausalLM, length: int = 2048) -> tuple[float, float]:
    """Best time of a prefill of `length` tokens and of one decode step after it, one thread."""
    ids = torch.randint(0, model.config.vocab_size, (1, length))
    prefill = _best(lambda: model(input_ids=ids, logits_to_keep=1), 4)
    cache = model(input_ids=ids, logits_to_keep=1).cache

    def step() -> None:
        model(input_ids=ids[:, :1], cache=cache)
        cache.crop(-1)

    return prefill, _best(step, 30)


def _best(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def measure(
    weights: Path = WEIGHTS, documents: int = 40
) -> tuple[list[Criterion], dict[str, Scores]]:
    """Measure every criterion on a pair of models.

    Args:
        weights: folder with `source` and `target`.
        documents: test documents to read.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(weights / "target")
    models = {
        name: Qwen3ForCausalLM.from_pretrained(weights / name, dtype=torch.float32).eval()
        for name in ("source", "target")
    }
    scored = {name: score(m, tokenizer, English(), documents) for name, m in models.items()}
    source, target = scored["source"][0], scored["target"][0]
    agreement = (scored["source"][1] == scored["target"][1]).float().mean().item()
    short, long = (nll_with_context(models["target"], tokenizer, c, documents) for c in (32, 1024))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    (pre_s, step_s), (pre_t, step_t) = (times_ms(models[name]) for name in ("source", "target"))
    torch.set_num_threads(threads)
    gap, gain = source.nll - target.nll, short - long
    prefill, step = pre_s / pre_t, step_s / step_t
    criteria = [
        Criterion("source NLL - target NLL, nats/token", gap, ">= 0.10", gap >= 0.10),
        Criterion("target NLL, 32 - 1,024 tokens of context", gain, ">= 0.15", gain >= 0.15),
        Criterion("target, far look-ups", target.far, ">= 0.97", target.far >= 0.97),
        Criterion("source, far look-ups", source.far, "0.80-0.93", 0.80 <= source.far <= 0.93),
        Criterion("target, last 64 tokens alone", target.window, "0.20-0.30",
                  0.2 <= target.window <= 0.3),
        Criterion("greedy agreement", agreement, ">= 0.80", agreement >= 0.80),
        Criterion("prefill of 2,048, source / target", prefill, "<= 0.15", prefill <= 0.15),
        Criterion("decode step, source / target", step, "<= 0.20", step <= 0.20),
    ]  # fmt: skip
    return criteria, {"source": source, "target": target}


def write_card(weights: Path = WEIGHTS, documents: int = 40) -> None:
    """Measure the pair and write `card.json`, keeping what the recipe wrote about training."""
    criteria, scores = measure(weights, documents)
    path = weights / "card.json"
    card = json.loads(path.read_text()) if path.exists() else {}
    card["documents"] = documents
    card["scores"] = {name: asdict(each) for name, each in scores.items()}
    card["criteria"] = [asdict(each) for each in criteria]
    card["versions"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    path.write_text(json.dumps(card, indent=2) + "\n")
    for each in criteria:
        print(
            f"{'met  ' if each.met else 'SHORT'} {each.name}: {each.measured:.3f} ({each.wanted})"
        )


if __name__ == "__main__":
    write_card()
