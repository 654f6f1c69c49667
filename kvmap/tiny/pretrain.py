"""The training loop of the embedded pair."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from kvmap.tiny.grow import grow
from kvmap.tiny.mimetic import initialise
from kvmap.tiny.muon import Muon
from kvmap.tiny.rows import Rows, value_tokens, word_classes

TOKENS_PER_BATCH = 1024  # more falls out of the processor's cache
SAVE_EVERY = 200  # steps


@dataclass(frozen=True)
class Stage:
    """A stretch of training.

    Attributes:
        length: tokens a row.
        steps: optimiser steps.
        facts: bindings per document.
        emphasis: weight in the loss of the words that can be values, against 1 for all others;
            what must be recalled is an eighth of the text, and its gradient is lost in the noise
            of the rest until recall has appeared.
    """

    length: int
    steps: int
    facts: int = 24
    emphasis: float = 1.0


@dataclass(frozen=True)
class Plan:
    """How one model is trained.

    Attributes:
        name: of the model; its checkpoints and exports carry it.
        config: the architecture.
        stages: row lengths, in order.
        muon: step size for matrices.
        adam: step size for embeddings and norms.
        decay: share of the steps over which the step sizes fall to zero at the end.
        distil: weight of the teacher's distribution in the loss; the text has the rest.
        first_row: number of the first training row, so that models need not see the same ones.
        seed: of weights and text.
    """

    name: str
    config: Qwen3Config
    stages: tuple[Stage, ...]
    muon: float = 0.004
    adam: float = 1e-3
    decay: float = 0.4
    distil: float = 0.0
    first_row: int = 0
    seed: int = 0

    @property
    def steps(self) -> int:
        """All steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        return self.stages[-1]

    def rate(self, step: int) -> float:
        """Step sizes' common factor: short warm-up, plateau, straight line down to zero."""
        return min(1.0, (step + 1) / 50, (self.steps - step) / (self.decay * self.steps))


def optimisers(model: nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    adam = torch.optim.AdamW(others, plan.adam, betas=(0.9, 0.95), weight_decay=0.0)
    return [Muon(matrices, plan.muon), adam]


def loss_of(
    model: Qwen3ForCausalLM,
    rows: Tensor,
    emphasis: Tensor,
    teacher: Qwen3ForCausalLM | None,
    weight: float,
) -> tuple[Tensor, Tensor]:
    """Loss to descend and plain NLL.

    Args:
        model: the student.
        rows: token ids [B, T + 1].
        emphasis: weight of each word of the vocabulary in the loss [V].
        teacher: whose distribution to learn, if any.
        weight: of KL(teacher || student) against the text's NLL.

    Returns:
        The mixed loss and the NLL, both in nats/token.
    """
    hidden = model.model(input_ids=rows[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).flatten(0, 1)
    labels = rows[:, 1:].flatten()
    each = F.cross_entropy(logits, labels, reduction="none")
    nll = (each * emphasis[labels]).sum() / emphasis[labels].sum()
    if teacher is None:
        return nll, each.detach().mean()
    with torch.no_grad():
        wanted = teacher(input_ids=rows[:, :-1], use_cache=False).logits.flatten(0, 1)
    divergence = F.kl_div(
        logits.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    return weight * divergence + (1 - weight) * nll, each.detach().mean()


def pretrain(
    plan: Plan,
    tokenizer: PreTrainedTokenizerFast,
    work: Path,
    teacher: Qwen3ForCausalLM | None = None,
    origin: Qwen3ForCausalLM | None = None,
    say: Callable[[str], None] = print,
) -> Qwen3ForCausalLM:
    """Train one model, resuming from its checkpoint where there is one.

    Args:
        plan: what to do.
        tokenizer: the pair's tokenizer.
        work: folder of checkpoints, and of `latest/<name>`, a loadable copy of the model so far.
        teacher: a trained model to distil from.
        origin: a trained model to go on from; one of fewer layers is grown.
        say: where progress lines go.

    Returns:
        The trained model, float32.
    """
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(plan.seed)
    if origin is None:
        model = Qwen3ForCausalLM(plan.config)
        initialise(model, word_classes(tokenizer))
    else:
        model = grow(origin, plan.config, word_classes(tokenizer))
    optims = optimisers(model, plan)
    start, checkpoint = 0, work / f"{plan.name}.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        for optim, state in zip(optims, saved["optimisers"], strict=True):
            optim.load_state_dict(state)
        start = saved["step"]
    bases = [plan.muon, plan.adam]
    for layer in model.model.layers:
        layer.compile()
    source = Rows(tokenizer, plan.seed)
    values = value_tokens(tokenizer)
    parameters = list(model.parameters())
    seen, since, mean = 0, time.time(), torch.zeros(())
    for step in range(start, plan.steps):
        stage = plan.stage(step)
        length = stage.length
        emphasis = torch.ones(plan.config.vocab_size).index_fill(0, values, stage.emphasis)
        count = max(TOKENS_PER_BATCH // length, 1)
        first = plan.first_row + step * (TOKENS_PER_BATCH // 64)
        rows = torch.stack([source(first + i, length, stage.facts) for i in range(count)])
        loss, nll = loss_of(model, rows, emphasis, teacher, plan.distil)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for optim, base in zip(optims, bases, strict=True):
            for group in optim.param_groups:
                group["lr"] = base * plan.rate(step)
            optim.step()
            optim.zero_grad()
        mean, seen = mean + nll, seen + count * length
        if (step + 1) % 50 == 0:
            pace = seen / (time.time() - since)
            say(f"{plan.name} {step + 1}/{plan.steps} length {length} nll {mean / 50:.4f} "
                f"{pace:.0f} tok/s")  # fmt: skip
            seen, since, mean = 0, time.time(), torch.zeros(())
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == plan.steps:
            saved = {
                "model": model.state_dict(),
                "optimisers": [optim.state_dict() for optim in optims],
                "step": step + 1,
            }
            torch.save(saved, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
            export(model, tokenizer, work / "latest" / plan.name)
    trained = Qwen3ForCausalLM(plan.config)
    trained.load_state_dict(model.state_dict())
    return trained.eval()


def export(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a model as bfloat16 safetensors, with its tokenizer, as transformers expects it."""
    copy = Qwen3ForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
