"""One network in which each task finds a subnetwork, of weights that earlier tasks use and of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown import seeds
from grown.data.task import Task
from grown.io.fields import Fields
from grown.methods.masked.layers import Kernels
from grown.methods.masked.masks import Largest, Mask, drawn
from grown.methods.masked.method import Masks, kernels_of
from grown.methods.masked.picking import PickingMethod, picked_of
from grown.methods.shared.training import Guard, Training, Weights
from grown.methods.wsn import coding
from grown.nn import bits
from grown.nn.graph import Graph


class WSN(PickingMethod):
    """A task uses the weights with the largest scores; those that no earlier task uses train with the scores."""

    name: ClassVar[str] = "wsn"

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._coded: dict[str, Tensor] = {}  # masks as a file has them
        self._claimed = 0

    def _used(self) -> Tensor:
        """Which weights some task picked."""
        nothing = torch.zeros(bits.packed_length(self._bits), dtype=torch.uint8)
        return bits.unpack(reduce(torch.bitwise_or, self._picked.values(), nothing), self._bits)

    def _begin(self, task: Task) -> nn.Module:
        """Weights that nobody uses are drawn afresh."""
        fresh = self.training.fresh(task, self._seed(task)).state_dict()
        network = super()._begin(task)
        if self._own:
            used = self._divide(self._used())
            kernels = {key: torch.where(flags, self._shared[key], fresh[key]) for key, flags in used.items()}
            network.load_state_dict(kernels, strict=False)
        return network

    def _guard(self, training: Training) -> Guard:
        """Kernels behind masks; what an earlier task uses does not train."""
        device = training.batches.device
        taken = {key: flags.to(device) for key, flags in self._divide(self._used()).items()}
        return Masks(
            kernels={
                key: Kernels(self._mask(key, training), ~flags, training.start[key] * flags)
                for key, flags in taken.items()
            }
        )

    def _mask(self, key: str, training: Training) -> Mask:
        config = self.config
        draw = seeds.generator(config.seed, "scores", training.task.name, key)
        return Largest(drawn(self._kernel_shapes[key], config.wsn_start, draw), config.wsn_density)

    def _share(self, training: Training, guard: Guard, kernels: Weights) -> None:
        picked = picked_of(kernels_of(guard))
        taken = self._divide(self._used())
        self._claimed = self._claims({key: flags & ~taken[key] for key, flags in picked.items()})
        before = self._shared or {key: torch.zeros_like(kernel) for key, kernel in kernels.items()}
        self._shared = {key: torch.where(flags, kernels[key], before[key]) for key, flags in picked.items()}
        super()._share(training, guard, kernels)

    def _new_kernels(self, is_new: bool) -> int:  # noqa: ARG002
        return self._claimed

    # --- files -----------------------------------------------------------------------------------------------------

    def _kept(self) -> dict[str, Tensor]:
        for name, packed in self._picked.items():
            if name not in self._coded:  # a mask does not change
                self._coded[name] = coding.shorten(packed)
        return {f"task/{number}/picked": self._coded[name] for number, name in enumerate(self.tasks, start=1)}

    def _kept_shapes(self, tasks: list[Fields]) -> dict[str, tuple[Any, ...]]:
        return dict.fromkeys(super()._kept_shapes(tasks), (torch.uint8, None))

    def _load_kept(self, tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:
        length = bits.packed_length(self._bits)
        masks = {name: coding.restore(name, tensors[name], length) for name in self._kept_shapes(tasks)}
        super()._load_kept(masks, tasks)
        self._coded = {name: tensors[f"task/{n}/picked"] for n, name in enumerate(self._picked, start=1)}
