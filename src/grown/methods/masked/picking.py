"""Masks that are learned from scores: a task's kernels are the shared ones, behind a bit for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown.data.task import Task
from grown.io.fields import Fields
from grown.methods.masked.layers import Kernels
from grown.methods.masked.masks import Mask
from grown.methods.masked.method import MaskedMethod, Masks, kernels_of, together
from grown.methods.shared.method import Shapes
from grown.methods.shared.training import Guard, Training, Weights
from grown.nn import bits
from grown.nn.graph import Graph


class PickingMethod(MaskedMethod):
    """Each task picks some of the shared kernels' weights.

    `backbone`: the first task trains the kernels as they are, and picks all; later ones pick of what it trained.
    """

    backbone: ClassVar[bool] = False

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._picked: dict[str, Tensor] = {}  # by task: a bit for each, all layers behind each other, packed

    # --- what a method adds ----------------------------------------------------------------------------------------

    def _mask(self, key: str, training: Training) -> Mask:
        """A layer's mask as it starts."""
        raise NotImplementedError

    @property
    def _mask_shapes(self) -> Shapes:
        """What has a bit: each weight."""
        return self._kernel_shapes

    # --- learning --------------------------------------------------------------------------------------------------

    def _begin(self, task: Task) -> nn.Module:
        """A backbone's norms and biases are where every later task begins, whatever was learned between."""
        if self.backbone and self._own:
            return self._copied(task, next(iter(self._own)))
        return super()._begin(task)

    def _guard(self, training: Training) -> Guard:
        """Kernels that do not train, each layer's behind a mask."""
        if self.backbone and not self._own:
            return Masks()
        return Masks(kernels={key: Kernels(self._mask(key, training)) for key in self._kernel_shapes})

    def _share(self, training: Training, guard: Guard, kernels: Weights) -> None:
        """Keep what the task picked; a backbone is kept whole."""
        made = kernels_of(guard)
        if not made:
            super()._share(training, guard, kernels)
        else:
            self._picked[training.task.name] = bits.pack(together(picked_of(made)))

    def _flags(self, task: str) -> dict[str, Tensor]:
        """What a task picked, by layer."""
        shapes = self._mask_shapes
        return self._divide(bits.unpack(self._picked[task], self._bits), shapes)

    @property
    def _bits(self) -> int:
        return sum(shape.numel() for shape in self._mask_shapes.values())

    def _kernels_of(self, task: str) -> Weights:
        if task not in self._picked:
            return self._shared
        return {key: torch.where(picked, self._shared[key], 0.0) for key, picked in self._flags(task).items()}

    # --- files -----------------------------------------------------------------------------------------------------

    def _numbers(self, names: list[str]) -> dict[int, str]:
        """The tasks that have a mask, by their numbers."""
        every = dict(enumerate(names, start=1))
        return {number: name for number, name in every.items() if number > 1 or not self.backbone}

    def _kept(self) -> dict[str, Tensor]:
        return {f"task/{number}/picked": self._picked[name] for number, name in self._numbers(self.tasks).items()}

    def _kept_shapes(self, tasks: list[Fields]) -> dict[str, tuple[Any, ...]]:
        length = bits.packed_length(self._bits)
        names = [task.text("name") for task in tasks]
        return {f"task/{number}/picked": (torch.uint8, length) for number in self._numbers(names)}

    def _load_kept(self, tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:
        for number, name in self._numbers([task.text("name") for task in tasks]).items():
            bits.unpack(tensors[f"task/{number}/picked"], self._bits)  # refuses bits that mean nothing
            self._picked[name] = tensors[f"task/{number}/picked"]


def picked_of(kernels: Mapping[str, Kernels]) -> dict[str, Tensor]:
    """What each layer's mask has on."""
    return {key: made.mask.picked().cpu() for key, made in kernels.items() if made.mask is not None}
