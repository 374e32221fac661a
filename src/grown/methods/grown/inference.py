"""Which task an image is of when nobody says so, and whether it is of any."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from grown.data.part import Part
from grown.data.task import Task
from grown.errors import ConfigError, TaskError, unknown
from grown.methods.grown import features
from grown.methods.grown.features import MOST, Features
from grown.train.batches import EVALUATION_BATCH

if TYPE_CHECKING:
    from grown.methods.grown.learner import Learner


@dataclass(frozen=True, eq=False)
class Answer:
    """What is said of one image: its task, that task's class probabilities, and how unusual it is there.

    `nearer` is the share of the task's own held-out images that lie nearer to its classes; None where the task has no
    stored statistic.
    """

    task: str
    probabilities: Tensor
    nearer: float | None


def rows_by_task(images: int, tasks: Sequence[str]) -> dict[str, list[int]]:
    """Which of so many images are of which task."""
    if images != len(tasks):
        raise TaskError(f"{images} images, but {len(tasks)} tasks")
    rows: dict[str, list[int]] = {}
    for number, name in enumerate(tasks):
        rows.setdefault(name, []).append(number)
    return rows


def answer(learner: Learner, images: ArrayLike, tasks: Sequence[str], device: str = "cpu") -> list[Answer]:
    """Each image by its own task's network; those of one task go through it together."""
    array = np.asarray(images)
    rows = rows_by_task(len(array), tasks)
    found: dict[int, Answer] = {}
    for name, mine in rows.items():
        seen, logits = _run(learner, name, array[mine], device)
        known = learner.records[name].features
        nearer: list[Any] = [None] * len(mine) if known is None else known.nearer(known.distance(seen)).tolist()
        for number, probabilities, share in zip(mine, logits.softmax(1), nearer, strict=True):
            found[number] = Answer(name, probabilities, share)
    return [found[number] for number in range(len(tasks))]


def infer(learner: Learner, images: ArrayLike, by: str = "features", device: str = "cpu") -> list[str]:
    """The most likely task of each image, by one of WAYS."""
    if by not in WAYS:
        raise unknown("way to infer a task", by, WAYS)
    array, names = np.asarray(images), learner.tasks
    strange = torch.stack([WAYS[by](learner, name, *_run(learner, name, array, device)) for name in names])
    return [names[number] for number in strange.argmin(0).tolist()]


def statistic(learner: Learner, task: str) -> Features:
    """A task's stored statistic; refused in words where it has none."""
    found = learner.records[task].features
    if found is None:
        raise ConfigError(
            f"task {task!r} has no stored features (it was learned by an earlier release, or by a loop of one's own); "
            "infer by entropy, without rejecting"
        )
    return found


def _by_features(learner: Learner, task: str, seen: Tensor, _: Tensor) -> Tensor:
    """How far an image lies from the task's classes, over what is usual for the task."""
    return statistic(learner, task).distance(seen)


def _by_entropy(_: Learner, __: str, ___: Tensor, logits: Tensor) -> Tensor:
    """How undecided the task's network is, over the most that it can be."""
    logs = logits.double().log_softmax(1)
    return -(logs.exp() * logs).sum(1) / math.log(logits.shape[1])


WAYS: dict[str, Callable[[Learner, str, Tensor, Tensor], Tensor]] = {
    "features": _by_features,
    "entropy": _by_entropy,
}


def look_at(learner: Learner, task: Task) -> Features | None:
    """The statistic of a learned task, from its training images: held-out ones say what distances are usual.

    None for a network whose features are no numbers any more.
    """
    fit = held_out = task.train
    if int(task.train.labels.bincount().min()) > 1:
        fit, held_out = task.hold_out(learner.config.holdout, learner.config.seed)
    fit, held_out = _some(fit, len(task.classes)), _some(held_out, len(task.classes))
    (network,) = learner.networks([task.name], learner.config.device)
    seen = [_seen(learner, network, task.name, part) for part in (fit, held_out)]
    if not all(bool(part.isfinite().all()) for part in seen):
        return None
    return features.measure(seen[0], fit.labels, seen[1], len(task.classes))


def _some(part: Part, classes: int) -> Part:
    """At most MOST images, as many of each class as there are or as fit."""
    each = max(1, MOST // classes)
    chosen = [(part.labels == label).nonzero().flatten()[:each] for label in range(classes)]
    return part.take(torch.cat(chosen).sort().values)


def _seen(learner: Learner, network: nn.Module, task: str, part: Part) -> Tensor:
    device, normalise, head = learner.config.device, learner.normalisation(task), learner.graph.head.name
    chunks = part.chunks(EVALUATION_BATCH)
    return torch.cat([features.seen_by_head(network, head, normalise(x.to(device)))[0].cpu() for x in chunks])


def _run(learner: Learner, task: str, images: NDArray[Any], device: str) -> tuple[Tensor, Tensor]:
    """What enters the head of a task's network, and its logits, on the CPU."""
    network, head = learner.ready(task, device), learner.graph.head.name
    parts = [
        features.seen_by_head(network, head, learner.prepare(task, images[start : start + EVALUATION_BATCH]).to(device))
        for start in range(0, len(images), EVALUATION_BATCH)
    ]
    return torch.cat([seen.cpu() for seen, _ in parts]), torch.cat([logits.float().cpu() for _, logits in parts])
