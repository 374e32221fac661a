"""Growth on a single task: learnable sparse growth (Eq. 3) beside conventional learnable growth (Eq. 2).

This is the paper's figure 2: accuracy, loss and grow ratio after each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from grown.config import Config
from grown.data.task import Task
from grown.methods.base import TaskReport
from grown.methods.grown.learner import Learner


@dataclass(frozen=True)
class GrowthPoint:
    """One epoch: held-out accuracy (%) and loss, training loss, and the open network's kernels over 1x."""

    epoch: int
    accuracy: float
    loss: float
    training_loss: float
    grow_ratio: float
    opened: int  # candidates that opened during the epoch
    closed: int


@dataclass(frozen=True)
class GrowthCurve:
    """How one network grew on one task."""

    sparse: bool
    points: tuple[GrowthPoint, ...]
    report: TaskReport
    learner: Learner


def alone(config: Config, *, sparse: bool) -> Config:
    """These settings for a single task, looked at after each epoch."""
    recipe = replace(config.recipe, watch=1)
    return config.replace(sparse=sparse, target=0.0, grow=True, refit=False, decide=1.0, recipe=recipe)


def grow_alone(template: nn.Module, task: Task, config: Config, *, sparse: bool = True) -> GrowthCurve:
    """Grow a seed network on one task; `sparse=False` is conventional learnable growth."""
    points: list[GrowthPoint] = []
    flips = {"opened": 0, "closed": 0}

    def watch(event: dict[str, Any]) -> None:
        if event["event"] == "gates":
            for kind in flips:
                flips[kind] += len(event[kind])
        if event["event"] == "epoch":
            points.append(
                GrowthPoint(
                    epoch=event["epoch"],
                    accuracy=event["val"],
                    loss=event["val_loss"],
                    training_loss=event["loss"],
                    grow_ratio=event["size_x"],
                    **flips,
                )
            )
            flips.update(opened=0, closed=0)

    learner = Learner(template, alone(config, sparse=sparse), observer=watch)
    report = learner.learn(task)
    return GrowthCurve(sparse, tuple(points), report, learner)
