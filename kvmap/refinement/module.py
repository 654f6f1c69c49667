"""Refinement as a LightningModule: a mapper's gradient through the frozen target.

A mapper fitted to KV spends its capacity on all of it alike. What the target makes of the KV is
another matter: some errors it never reads, others change its next word. Here the target answers
twice, after its own KV and after the mapped KV of the same prompt, and the mapper learns to bring
the second answer to the first (knowledge distillation, Hinton et al. 2015, with the target as its
own teacher and the mapper as all that learns).

Nothing is differentiated through the prompt but the mapper: the target runs with gradients over
the few tokens after it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvmap import cache as caches
from kvmap.errors import KVMapError
from kvmap.evaluation.branches import Branch, visible
from kvmap.evaluation.models import Models
from kvmap.kv import KV, KVBatch
from kvmap.mappers.base import Mapper
from kvmap.measured import Measured
from kvmap.pair import ModelPair
from kvmap.refinement.cuts import Cuts
from kvmap.refinement.data import RefinementData
from kvmap.refinement.settings import RefinementSettings


class Refinement(Measured):
    """Minimises KL(target after its own KV ‖ target after mapped KV) in nats/token.

    The mean goes over the tokens after each prompt. The first of them are what serving repairs:
    their KV is the target's own, computed over the mapped prompt.

    Args:
        mapper: What learns; its parameters, not its buffers.
        pair: The models, loaded when training starts and never changed.
        settings: Sizes and step size.

    Raises:
        KVMapError: The mapper has no parameters.
    """

    gradient = True

    def __init__(self, mapper: Mapper, pair: ModelPair, settings: RefinementSettings) -> None:
        super().__init__()
        if not any(True for _ in mapper.parameters()):
            raise KVMapError(
                f"a {mapper.family} mapper has nothing that learns by gradient steps; refine a "
                "bottleneck or an mlp"
            )
        self.mapper, self.pair, self.settings = mapper.train().requires_grad_(True), pair, settings
        self.models: Models | None = None
        self.fit_seconds = mapper.fit_seconds

    def divergence(self, cuts: Cuts) -> Tensor:
        """KL(target after its own KV ‖ target after mapped KV), mean over tokens, nats."""
        if self.models is None:
            raise RuntimeError("the models are loaded by a trainer's fit")
        source, target = self.models.source, self.models.target
        ids, longest = cuts.ids.to(target.device), cuts.prompts[-1]
        length = self.settings.continuation
        parts = [torch.arange(prompt, prompt + length) for prompt in cuts.prompts]
        after = torch.cat(parts).to(target.device)
        with torch.no_grad():
            own = caches.prefill(source, cuts.ids[:, :longest].to(source.device))
            every = torch.arange(longest + length, device=target.device)
            exact = caches.forward(target, ids[:, : len(every)], caches.empty(), every, after)
        lines = zip(parts, cuts.prompts, strict=True)
        branches = [Branch(part, start=prompt, kept=prompt) for part, prompt in lines]
        mapped = caches.forward(
            target,
            ids[:, after],
            caches.write(self.map(own.to(self.device)).to(target.device)),
            after,
            visible=visible(branches, longest).to(target.device),
        )
        exact, mapped = (F.log_softmax(each.float(), -1) for each in (exact, mapped))
        return F.kl_div(mapped, exact, reduction="sum", log_target=True) / mapped[..., 0].numel()

    def map(self, rotated: KV) -> KV:
        """:func:`kvmap.runtime.mapped.map_rotated` with gradients, from position 0 on."""
        positions = torch.arange(rotated.tokens, device=rotated.keys.device)
        keys = self.pair.source.rotary.strip(rotated.keys.float(), positions)
        mapped = self.mapper(KV(keys, rotated.values.float()))
        keys = self.pair.target.rotary.apply(mapped.keys, positions)
        return KV(*(part.to(self.pair.target.dtype) for part in (keys, mapped.values)))

    # Lightning's hooks, in the order in which they run.

    def setup(self, stage: str) -> None:
        """Load the models and prepare the metrics."""
        if self.trainer.world_size > 1:
            raise KVMapError(
                f"refinement runs in one process, not {self.trainer.world_size}; "
                "use trainer.devices=1"
            )
        data: RefinementData = self.trainer.datamodule  # type: ignore[attr-defined]
        self.measure_on(data.pairs.collection)
        self.models = Models(self.pair)

    def configure_optimizers(self) -> Any:
        """Adam, its step size falling along a cosine over all steps."""
        optimizer = torch.optim.Adam(self.mapper.parameters(), lr=self.settings.lr, fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def training_step(self, batch: Cuts, _: int) -> Tensor:
        """One gradient step."""
        loss = self.divergence(batch)
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: KVBatch | Cuts, _: int, dataloader_idx: int = 0) -> None:
        """Measure diagnostics on development documents and the loss on selection documents."""
        if isinstance(batch, KVBatch):
            self.measure(self.mapper(batch.pair.source), batch)
        else:
            size = len(batch.ids)
            loss = self.divergence(batch)
            self.log(
                "selection/loss", loss, add_dataloader_idx=False, batch_size=size, prog_bar=True
            )
