"""The one training loop: every method, every stage, every device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from grown import seeds
from grown.config import Recipe
from grown.train.batches import Batches
from grown.train.schedule import factor


@dataclass(frozen=True)
class Epoch:
    """What one epoch ended with: its number from 1, and the mean training loss."""

    number: int
    epochs: int
    loss: float


def fit(
    network: nn.Module,
    groups: list[dict[str, Any]],
    batches: Batches,
    recipe: Recipe,
    seed: int,
    penalty: Callable[[], Tensor] | None = None,
    anneal: Callable[[float], None] | None = None,
    after_epoch: Callable[[Epoch], None] | None = None,
) -> None:
    """Train the parameter groups (weights, norms, scores) for the recipe's epochs."""
    optimizers = make_optimizers(groups, recipe)
    steps = recipe.epochs * batches.steps
    step = 0
    with torch.random.fork_rng(devices=_cuda_devices(network)):
        torch.manual_seed(seeds.derive(seed, "dropout"))
        for number in range(1, recipe.epochs + 1):
            network.train()
            total = torch.zeros((), device=batches.part.labels.device)
            for x, y in batches.epoch():
                set_rates(optimizers, factor(recipe, step, steps))
                if anneal is not None:
                    anneal(step / steps)
                loss = F.cross_entropy(network(x), y, label_smoothing=recipe.smoothing)
                total += loss.detach()
                if penalty is not None:
                    loss = loss + penalty()
                loss.backward()  # type: ignore[no-untyped-call]
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                step += 1
            if after_epoch is not None:
                after_epoch(Epoch(number, recipe.epochs, float(total) / batches.steps))


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
        nesterov = recipe.momentum > 0
        optimizers.append(SGD(plain, lr=recipe.rate, momentum=recipe.momentum, nesterov=nesterov, fused=True))
    else:
        optimizers.append(Adam(plain, lr=recipe.rate, fused=True))
    if scores := [parameter for group in groups if group["name"] == "scores" for parameter in group["params"]]:
        optimizers.append(Adam(scores, lr=recipe.score_rate, fused=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_rate"] = group["lr"]
    return optimizers


def set_rates(optimizers: list[Optimizer], share: float) -> None:
    """Set every rate to this share of its full value."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full_rate"] * share


def _cuda_devices(network: nn.Module) -> list[int]:
    devices = {parameter.device for parameter in network.parameters()}
    return [device.index or 0 for device in devices if device.type == "cuda"]
