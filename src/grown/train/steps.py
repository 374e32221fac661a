"""One training, and its step: what is computed before the parameters change, and by what they change.

`PlainSteps` runs the steps as they are; it is also the reference that captured ones are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grown.config import Recipe
from grown.train import turns
from grown.train.batches import Batch, Batches
from grown.train.fuse import Fusion
from grown.train.optimizers import SGD, Adam, Optimizer
from grown.train.schedule import factor


@dataclass(frozen=True)
class Epoch:
    """What one epoch ended with: its number from 1, and the mean training loss."""

    number: int
    epochs: int
    loss: float


@dataclass(frozen=True)
class Work:
    """One training: what is trained, on what, how, and who is told.

    What a method adds runs inside the step, which a GPU captures: tensors of fixed shapes, nothing read back. What of
    it must survive between epochs is a part of the network's state.
    """

    network: nn.Module
    groups: list[dict[str, Any]]  # by name: weights, norms, scores
    batches: Batches
    recipe: Recipe
    seed: int = 0
    penalty: Callable[[], Tensor] | None = None
    anneal: Callable[[float], None] | None = None
    after_epoch: Callable[[Epoch], None] | None = None
    beside: tuple[Batches, ...] = ()  # a batch of each comes with every step; as many steps an epoch as `batches`
    extra_loss: Callable[[Batch, Sequence[Batch]], Tensor] | None = None  # of the step's batch and of those beside it
    around_update: Callable[[], AbstractContextManager[None]] | None = None  # entered with gradients, left without
    score_schedule: str | None = None  # of the scores' rate; as the recipe's if None
    is_over: Callable[[], bool] | None = None  # asked after each epoch, by the network's state alone; ends it early

    @property
    def in_half(self) -> bool:
        """Whether convolutions run in half precision."""
        return self.batches.device.type == "cuda" and self.recipe.precision == "auto"

    def __post_init__(self) -> None:
        if any(batches.steps != self.batches.steps for batches in self.beside):
            raise ValueError("batches that come beside others have as many steps an epoch")


def loss_of(
    work: Work, batch: Batch, beside: Sequence[Batch] = (), run: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The loss to descend, and the part of it that is cross-entropy; `run` stands for the network if given."""
    recipe = work.recipe
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if work.in_half else nullcontext():
        logits = (work.network if run is None else run)(batch.x).float()
        extra = work.extra_loss(batch, beside) if work.extra_loss is not None else None
    loss = F.cross_entropy(logits, batch.labels, label_smoothing=recipe.smoothing)
    if batch.others is not None and batch.share is not None:
        mixed = F.cross_entropy(logits, batch.others, label_smoothing=recipe.smoothing)
        loss = loss + batch.share * (mixed - loss)
    if recipe.turns and recipe.agree > 0:
        loss = loss + recipe.agree * turns.disagreement(logits)
    entropy = loss.detach()
    if extra is not None:
        loss = loss + extra
    return (loss if work.penalty is None else loss + work.penalty()), entropy


def update(work: Work, optimizers: list[Optimizer]) -> None:
    """Let the gradients change the parameters, and be gone."""
    with work.around_update() if work.around_update is not None else nullcontext():
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


class PlainSteps:
    """Steps as they are."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.batches, self.recipe = work.batches, work.recipe
        self.optimizers = make_optimizers(work.groups, work.recipe)
        self.total = work.recipe.epochs * work.batches.steps
        self._fusion = Fusion(work.network, on_cpu=True) if work.batches.device.type == "cpu" else None

    def skip(self, epochs: int) -> None:
        """These epochs are done; nothing here counts them."""

    def epoch(self, number: int) -> float:
        """One epoch; returns its mean loss."""
        for batches in (self.batches, *self.work.beside):
            batches.begin(number)
        total = torch.zeros((), device=self.batches.device)
        for step in range(self.batches.steps):
            for optimizer, schedule in zip(self.optimizers, schedules(self.work), strict=False):
                overall = (number - 1) * self.batches.steps + step
                set_rates([optimizer], factor(self.recipe, overall, self.total, schedule))
            beside = [batches.at(step) for batches in self.work.beside]
            loss, entropy = loss_of(self.work, self.batches.at(step), beside)
            loss.backward()  # type: ignore[no-untyped-call]
            update(self.work, self.optimizers)
            total += entropy
        return float(total) / self.batches.steps

    def finish(self) -> None:
        """The network is as it was, but trained."""
        if self._fusion is not None:
            self._fusion.undo()


def make_optimizers(groups: list[dict[str, Any]], recipe: Recipe) -> list[Optimizer]:
    """One optimizer for weights and norms, and Adam for scores, as the recipe says."""
    decay = {"weights": recipe.weight_decay}
    plain = [
        {"params": group["params"], "weight_decay": decay.get(group["name"], 0.0)}
        for group in groups
        if group["name"] != "scores"
    ]
    optimizers: list[Optimizer] = []
    if recipe.optimizer == "sgd":
        optimizers.append(SGD(plain, recipe.rate, recipe.momentum))
    else:
        optimizers.append(Adam(plain, recipe.rate))
    scores = [parameter for group in groups if group["name"] == "scores" for parameter in group["params"]]
    if scores:
        optimizers.append(Adam([{"params": scores}], recipe.score_rate))
    return optimizers


def schedules(work: Work) -> tuple[str | None, str | None]:
    """What the rates of `make_optimizers`' two follow: the recipe's own schedule if None."""
    return None, work.score_schedule


def set_rates(optimizers: list[Optimizer], share: float) -> None:
    """Set every rate to this share of its full value."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full_rate"] * share
