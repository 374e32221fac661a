"""A factor for each kernel of the first task's network: 1 where it is picked, a smaller real value elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from grown.config import Recipe
from grown.errors import FileError
from grown.io.fields import Fields
from grown.methods.ksm.mask import SoftKernels, over
from grown.methods.masked.masks import Mask
from grown.methods.masked.method import kernels_of, together
from grown.methods.masked.picking import PickingMethod, picked_of
from grown.methods.shared.method import Shapes
from grown.methods.shared.training import Guard, Training, Weights
from grown.nn.graph import Graph


class KSM(PickingMethod):
    """The first task trains the network; every later one learns what to multiply each of its kernels by."""

    name: ClassVar[str] = "ksm"
    backbone: ClassVar[bool] = True

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._soft: dict[str, Tensor] = {}  # by task: a factor for each kernel that it does not pick

    @property
    def _mask_shapes(self) -> Shapes:
        """What has a bit: each kernel (out, in)."""
        return {key: torch.Size(extent) for key, extent in self._extents.items()}

    def _mask(self, key: str, training: Training) -> Mask:  # noqa: ARG002
        return SoftKernels(torch.full(self._extents[key], self.config.ksm_start), self._kernel_shapes[key])

    def _recipe(self, recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, score_rate=self.config.ksm_rate)

    def _share(self, training: Training, guard: Guard, kernels: Weights) -> None:
        super()._share(training, guard, kernels)
        if made := kernels_of(guard):
            soft = [layer.mask for layer in made.values() if isinstance(layer.mask, SoftKernels)]
            factors = torch.cat([mask.factors().detach().cpu().flatten() for mask in soft])
            self._soft[training.task.name] = factors[~together(picked_of(made))]

    def _kernels_of(self, task: str) -> Weights:
        if task not in self._picked:
            return self._shared
        picked = together(self._flags(task))
        factors = torch.ones(len(picked))
        factors[~picked] = self._soft[task]
        return {
            key: self._shared[key] * over(part, self._kernel_shapes[key])
            for key, part in self._divide(factors, self._mask_shapes).items()
        }

    # --- files -----------------------------------------------------------------------------------------------------

    def _kept(self) -> dict[str, Tensor]:
        soft = {f"task/{number}/soft": self._soft[name] for number, name in self._numbers(self.tasks).items()}
        return {**super()._kept(), **soft}

    def _kept_shapes(self, tasks: list[Fields]) -> dict[str, tuple[Any, ...]]:
        shapes = super()._kept_shapes(tasks)
        return {**shapes, **{name.replace("picked", "soft"): (torch.float32, None) for name in shapes}}

    def _load_kept(self, tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:
        super()._load_kept(tensors, tasks)
        for number, name in self._numbers([task.text("name") for task in tasks]).items():
            soft, free = tensors[f"task/{number}/soft"], int((~together(self._flags(name))).sum())
            if len(soft) != free or bool(((soft < 0) | (soft > 0.5)).any()):
                raise FileError(f"task/{number}/soft must hold {free} values from 0 to 0.5, one a kernel not picked")
            self._soft[name] = soft
