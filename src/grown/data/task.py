"""One task: named classes, training images, test images; checked before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from grown import seeds
from grown.data.given import Pair, read_part
from grown.data.part import Part
from grown.errors import TaskError


@dataclass(frozen=True, init=False, eq=False)
class Task:
    """A classification task. `train` and `test`: (images, labels), images uint8 (n, h, w, c); or torch Datasets.

    `validation` is for a benchmark that has a validation set of its own: which training images it is (their numbers),
    or the share of them that a run's seed draws. By `--protocol paper` it decides; `honest` draws its own.
    """

    name: str
    classes: tuple[str, ...]
    train: Part = field(repr=False)
    test: Part = field(repr=False)
    validation: tuple[int, ...] | float | None = field(repr=False)

    def __init__(
        self,
        name: str,
        train: Pair | Dataset[Any] | Part,
        test: Pair | Dataset[Any] | Part,
        classes: Sequence[str] | None = None,
        validation: Sequence[int] | float | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
            raise TaskError(f"a task's name is a short printable text, but got {name!r}")
        parts = {key: read_part(name, key, data) for key, data in (("train", train), ("test", test))}
        names = tuple(str(c) for c in classes) if classes is not None else _count(parts["train"].labels)
        if len(names) < 2:
            raise TaskError(f"task {name!r}: needs at least two classes, but has {len(names)}")
        if len(set(names)) != len(names):
            raise TaskError(f"task {name!r}: a class is named twice in {list(names)}")
        for key, part in parts.items():
            _check_labels(name, key, part.labels, len(names))
        if parts["train"].shape != parts["test"].shape:
            raise TaskError(
                f"task {name!r}: train images are {list(parts['train'].shape)}, "
                f"test images {list(parts['test'].shape)} (channels first)"
            )
        missing = set(range(len(names))) - set(parts["train"].labels.tolist())
        if missing:
            raise TaskError(f"task {name!r}: class {names[min(missing)]!r} has no training image")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "classes", names)
        object.__setattr__(self, "train", parts["train"])
        object.__setattr__(self, "test", parts["test"])
        object.__setattr__(self, "validation", _validation(name, parts["train"], len(names), validation))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels first, without the batch axis."""
        return self.train.shape

    def validated(self, seed: int) -> tuple[Part, Part] | None:
        """The training set as (what trains, what decides) by the benchmark's own division, if it has one."""
        if self.validation is None:
            return None
        if isinstance(self.validation, float):
            return self.hold_out(self.validation, seed)
        decides = torch.zeros(len(self.train), dtype=torch.bool)
        decides[list(self.validation)] = True
        return self.train.take((~decides).nonzero().flatten()), self.train.take(decides.nonzero().flatten())

    def hold_out(self, fraction: float, seed: int) -> tuple[Part, Part]:
        """The training set as (what trains, what decides), each class divided alike."""
        draw = seeds.generator(seed, "hold-out", self.name)
        fit, decide = [], []
        for label in range(len(self.classes)):
            members = (self.train.labels == label).nonzero().flatten()
            if len(members) < 2:
                raise TaskError(
                    f"task {self.name!r}: class {self.classes[label]!r} has {len(members)} training image; "
                    "at least 2 are needed, one of them to decide with"
                )
            members = members[torch.randperm(len(members), generator=draw)]
            count = min(len(members) - 1, max(1, round(fraction * len(members))))
            decide.append(members[:count])
            fit.append(members[count:])
        return self.train.take(torch.cat(fit).sort().values), self.train.take(torch.cat(decide).sort().values)


def _validation(
    task: str, train: Part, classes: int, given: Sequence[int] | float | None
) -> tuple[int, ...] | float | None:
    if given is None:
        return None
    if isinstance(given, float | int):
        if not 0 < given < 1:
            raise TaskError(f"task {task!r}: a share of the training images validates, but got {given}")
        return float(given)
    rows = tuple(int(row) for row in given)
    if not rows or len(set(rows)) != len(rows) or not 0 <= min(rows) <= max(rows) < len(train):
        raise TaskError(f"task {task!r}: validation images are different ones of the {len(train)} training images")
    left = torch.ones(len(train), dtype=torch.bool)
    left[list(rows)] = False
    if int((train.labels[left].bincount(minlength=classes) == 0).sum()):
        raise TaskError(f"task {task!r}: a class has validation images, but none to train on")
    return rows


def _count(labels: Tensor) -> tuple[str, ...]:
    return tuple(str(label) for label in range(int(labels.max()) + 1)) if int(labels.min()) >= 0 else ()


def _check_labels(task: str, key: str, labels: Tensor, classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise TaskError(
            f"task {task!r}, {key}: labels must lie between 0 and {classes - 1}, but range from {low} to {high}"
        )
