"""One network that sees a memory of earlier tasks' images in every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from grown import seeds
from grown.data.part import Part
from grown.data.task import Task
from grown.errors import FileError
from grown.io.fields import Fields
from grown.methods.base import TaskReport
from grown.methods.replay import memory
from grown.methods.shared.branches import Branches
from grown.methods.shared.branching import BranchingMethod
from grown.methods.shared.training import Guard, Training
from grown.nn.graph import Graph
from grown.train.batches import Batch, Batches

SHARE = 0.05  # of 1x in fp32: the memory's bytes, unless they are stated
FEWEST = 8  # images of an earlier task in a step: its norms use their statistics


class Replay(BranchingMethod):
    """One network that trains again on a few kept images of every earlier class, which count in its size."""

    name: ClassVar[str] = "replay"
    own_images: ClassVar[bool] = True

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._memory: dict[str, Part] = {}  # by task

    def learn(self, task: Task) -> TaskReport:
        """Train on together with the memory, then keep images of this task too."""
        self._check([task])
        self._places(task)  # refuses before anything is trained
        return super().learn(task)

    def _places(self, task: Task) -> int:
        """How many images of each class the memory has room for, with this task's classes."""
        classes = len(task.classes) + sum(len(self._records[name][0]) for name in self._memory)
        usual = int(SHARE * 4 * self.base_parameters)
        return memory.places(self.config.memory_bytes, usual, classes * memory.bytes_of(task.train))

    def _protect(self, training: Training, branches: Branches) -> Guard:
        """Each step has one batch more, in equal parts of each earlier task, augmented alike."""
        steps = training.batches.steps
        size = max(FEWEST, training.batches.size // len(self._memory))
        recipe = dataclasses.replace(training.recipe, batch=size, cutmix=0.0, mixup=0.0, turns=False)
        strength, smoothing = self.config.replay_strength, recipe.smoothing
        beside = tuple(
            Batches(
                memory.repeated(kept, steps * size),
                self._records[name][1],
                recipe,
                self.config.device,
                self.config.seed,
                training.task.name,
                "replay",
                name,
            )
            for name, kept in self._memory.items()
        )

        def extra_loss(batch: Batch, beside: Sequence[Batch]) -> Tensor:  # noqa: ARG001
            losses = [
                F.cross_entropy(branches(number, old.x), old.labels, label_smoothing=smoothing)
                for number, old in enumerate(beside)
            ]
            return strength * torch.stack(losses).mean()

        return Guard(beside=beside, extra_loss=extra_loss, aside=branches)

    def _remember(self, training: Training, guard: Guard) -> None:
        super()._remember(training, guard)
        task = training.task
        places = self._places(task)
        order = torch.randperm(len(training.part), generator=seeds.generator(self.config.seed, "memory", task.name))
        parts = {**self._memory, task.name: training.part.take(order)}
        self._memory = {name: memory.cut(part, places) for name, part in parts.items()}

    def _kept(self) -> dict[str, Tensor]:
        tensors = {}
        for number, part in enumerate(self._memory.values(), start=1):
            tensors[f"task/{number}/images"] = part.images
            tensors[f"task/{number}/labels"] = part.labels.to(memory.LABEL)
        return tensors

    def _kept_shapes(self, tasks: list[Fields]) -> dict[str, tuple[Any, ...]]:
        shapes: dict[str, tuple[Any, ...]] = {}
        for number in range(1, 1 + len(tasks)):
            shape = self.training.graph.input_shape
            shapes[f"task/{number}/images"] = ((torch.uint8, torch.float32), None, *shape)
            shapes[f"task/{number}/labels"] = (memory.LABEL, None)
        return shapes

    def _load_kept(self, tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:
        for number, task in enumerate(tasks, start=1):
            images, labels = tensors[f"task/{number}/images"], tensors[f"task/{number}/labels"].long()
            name, classes = task.text("name"), len(task.names("classes"))
            if len(images) != len(labels) or set(labels.tolist()) != set(range(classes)):
                raise FileError(f"task {name!r}: its memory has not an image and a label of each of its classes")
            self._memory[name] = Part(images, labels)
