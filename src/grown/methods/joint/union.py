"""Several tasks as one: every class of every task is a class of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from grown.data.part import Part
from grown.data.task import Task


@dataclass(frozen=True)
class Union:
    """The tasks' classes behind each other; as much of a task as `PlainTraining` asks for."""

    name: str
    tasks: tuple[Task, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes of all tasks."""
        return tuple(f"{task.name}/{label}" for task in self.tasks for label in task.classes)

    def rows(self) -> dict[str, slice]:
        """Where each task's classes stand among all."""
        return rows_of({task.name: task.classes for task in self.tasks})

    def join(self, parts: Sequence[Part]) -> Part:
        """A part of each task, in the tasks' order, as one part."""
        labels = [part.labels + rows.start for part, rows in zip(parts, self.rows().values(), strict=True)]
        return Part(torch.cat([part.images for part in parts]), torch.cat(labels))


def rows_of(classes: Mapping[str, Sequence[str]]) -> dict[str, slice]:
    """Each task's rows in one head, the tasks behind each other."""
    rows, first = {}, 0
    for task, names in classes.items():
        rows[task] = slice(first, first + len(names))
        first += len(names)
    return rows
