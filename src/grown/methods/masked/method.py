"""One network of the template's widths whose kernels never change for a task that was learned."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown.config import Recipe
from grown.data.task import Task
from grown.errors import FileError
from grown.io.fields import Fields
from grown.methods import check
from grown.methods.masked import layers
from grown.methods.masked.layers import Kernels
from grown.methods.shared import SharedMethod
from grown.methods.shared.method import Shapes
from grown.methods.shared.training import Guard, Training
from grown.nn import limits
from grown.nn.bank import as_stored, make_banks
from grown.nn.graph import Graph

ELEMENT_BYTES = 8  # of memory for each weight of the network while a file is read, at most


@dataclass(frozen=True)
class Masks(Guard):
    """A training's kernels behind masks; a layer that is not named trains as it is."""

    kernels: dict[str, Kernels] = field(default_factory=dict)


class MaskedMethod(SharedMethod):
    """Kernels are shared and each task uses some of them; norms, biases and heads are each task's own.

    A method says with `_guard` what of the kernels trains and behind which masks, with `_share` what it keeps of that,
    and with `_kernels_of` what a task uses.
    """

    forgets: ClassVar[bool] = False

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        banks = make_banks(graph.banked(), self.training.channels)
        self._extents = {f"{name}.weight": bank.extent(self.training.widths) for name, bank in banks.items()}

    # --- learning --------------------------------------------------------------------------------------------------

    def _trainings(self, task: Task) -> list[Training]:
        return [
            dataclasses.replace(training, recipe=self._recipe(training.recipe)) for training in super()._trainings(task)
        ]

    def _recipe(self, recipe: Recipe) -> Recipe:
        """The same with the method's own rate for scores, where it has one."""
        return recipe

    def _groups(self, network: nn.Module) -> list[dict[str, Any]]:
        return layers.masked_groups(network)

    def _fit(self, trainings: list[Training], guards: list[Guard]) -> None:
        """Train behind the masks; then each network is a plain one again, its kernels those that count."""
        for training, guard in zip(trainings, guards, strict=True):
            layers.install(training.network, kernels_of(guard))
        super()._fit(trainings, guards)
        for training, guard in zip(trainings, guards, strict=True):
            layers.remove(training.network, kernels_of(guard))
            self._fold(training, kernels_of(guard))

    @torch.no_grad()
    def _fold(self, training: Training, kernels: Mapping[str, Kernels]) -> None:
        """What was trained as a file has it, behind its mask."""
        for key, weight in training.kernels.items():
            made = kernels.get(key)
            if made is None or made.trainable is not None:
                weight.copy_(as_stored(weight, self.config.kernel_format))
            if made is not None:
                weight.copy_(made(weight))

    def _round(self, training: Training, guard: Guard) -> None:
        """That was done before masks were applied: what they leave is in no file."""

    def _claims(self, flags: Mapping[str, Tensor]) -> int:
        """How many kernels (out x in) have a weight among these."""
        return sum(int(flags[key].reshape(*extent, -1).any(-1).sum()) for key, extent in self._extents.items())

    # --- files -----------------------------------------------------------------------------------------------------

    def _used(self) -> Tensor | None:
        """Which weights, all layers behind each other, some task uses; None: all. The others are in no file."""
        return None

    def _bank(self) -> dict[str, Tensor]:
        stored = super()._bank()["shared/kernels"]
        used = self._used()
        return {"shared/kernels": stored if used is None else stored[used]}

    def _load_bank(self, tensors: Mapping[str, Tensor]) -> None:
        used = self._used()
        if used is None:
            super()._load_bank(tensors)
            return
        stored = tensors["shared/kernels"]
        if len(stored) != int(used.sum()):
            raise FileError(f"{int(used.sum())} weights are used, but shared/kernels holds {len(stored)}")
        whole = torch.zeros(len(used))
        whole[used] = stored.float()
        self._shared = self._divide(whole)

    def _load_tasks(self, meta: Fields, tensors: dict[str, Tensor]) -> None:
        if meta.items("tasks"):
            limits.check_memory(ELEMENT_BYTES * self._elements, check.stored_bytes(tensors))
        super()._load_tasks(meta, tensors)

    @property
    def _elements(self) -> int:
        """How many weights the kernels have."""
        return sum(math.prod(shape) for shape in self._kernel_shapes.values())

    def _divide(self, values: Tensor, shapes: Shapes | None = None) -> dict[str, Tensor]:
        """Values of all layers behind each other, by layer."""
        shapes = self._kernel_shapes if shapes is None else shapes
        pieces = torch.split(values, [math.prod(shape) for shape in shapes.values()])
        return {key: piece.view(shape) for (key, shape), piece in zip(shapes.items(), pieces, strict=True)}


def together(values: Mapping[str, Tensor]) -> Tensor:
    """Values of all layers behind each other."""
    return torch.cat([part.flatten() for part in values.values()])


def kernels_of(guard: Guard) -> dict[str, Kernels]:
    """The kernels that a training has behind masks."""
    return guard.kernels if isinstance(guard, Masks) else {}
