"""One frozen network, and for each later task a low-rank update of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown.config import Config
from grown.data.task import Task
from grown.errors import ConfigError
from grown.io import flat
from grown.io.fields import Fields
from grown.methods.adapter.low_rank import LowRank, factor_shapes, updated
from grown.methods.check import KERNEL_TYPES
from grown.methods.shared.method import Shapes, SharedMethod
from grown.methods.shared.training import Guard, Training, Weights
from grown.nn.bank import FORMATS
from grown.nn.graph import Graph
from grown.nn.initial import Initializer


class Adapter(SharedMethod):
    """The first task's network, frozen; each later task adds a low-rank update of each layer (W + B A)."""

    name: ClassVar[str] = "adapter"
    forgets: ClassVar[bool] = False
    layout: ClassVar[str] = "each an update of the first one's network"

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._factors: dict[str, Weights] = {}  # by task, from the second on

    def configure(self, config: Config) -> None:
        """Go on with these settings; updates that are there have a rank."""
        if self._records and config.adapter_rank != self.config.adapter_rank:
            raise ConfigError(f"this model's adapter_rank is {self.config.adapter_rank}, but got {config.adapter_rank}")
        super().configure(config)

    def _factor_shapes(self) -> Shapes:
        return factor_shapes(self._kernel_shapes, self.config.adapter_rank)

    def _begin(self, task: Task) -> nn.Module:
        """The first task's network with a new head, and in each layer an update that is zero as yet."""
        if not self._own:
            return super()._begin(task)
        network = self._copied(task, next(iter(self._own)))
        initializer = Initializer(self.training.gains, self._seed(task), 0)
        shapes = self._factor_shapes()
        for node in self.training.graph.banked():
            layer: Any = network.get_submodule(node.name)
            rank, columns = shapes[f"{node.name}.a"]
            # A is drawn as the layer's own kernels are, so that a step on B moves W + B A about as far as one on W.
            a = initializer.kernels(node.name, (rank, columns), (), 0)
            network.set_submodule(node.name, LowRank(layer, torch.zeros(shapes[f"{node.name}.b"]), a))
        return network

    def _trained_kernels(self, network: nn.Module) -> dict[str, nn.Parameter]:
        return {
            key: network.get_parameter(key) for key in (self._factor_shapes() if self._own else self._kernel_shapes)
        }

    def _round(self, training: Training, guard: Guard) -> None:
        """The factors as a file has them, and then in the weights of a plain network."""
        super()._round(training, guard)
        for name, module in list(training.network.named_modules()):
            if isinstance(module, LowRank):
                training.network.set_submodule(name, module.plain())

    def _share(self, training: Training, guard: Guard, kernels: Weights) -> None:
        if self._own:
            factors = {key: factor.detach().cpu() for key, factor in training.kernels.items()}
            self._factors[training.task.name] = factors
        else:
            super()._share(training, guard, kernels)

    def _kernels_of(self, task: str) -> Weights:
        """The first task's, each with the task's update."""
        if task not in self._factors:
            return self._shared
        mine = self._factors[task]
        names = {key: key.removesuffix(".weight") for key in self._shared}
        return {key: updated(self._shared[key], mine[f"{name}.b"], mine[f"{name}.a"]) for key, name in names.items()}

    # --- files -----------------------------------------------------------------------------------------------------

    def _kept(self) -> dict[str, Tensor]:
        shapes, stored = self._factor_shapes(), FORMATS[self.config.kernel_format]
        return {
            f"task/{number}/factors": flat.flatten(self._factors[name], shapes).to(stored)
            for number, name in enumerate(self._records, start=1)
            if name in self._factors
        }

    def _kept_shapes(self, tasks: list[Fields]) -> dict[str, tuple[Any, ...]]:
        return {f"task/{number}/factors": (KERNEL_TYPES, None) for number in range(2, 1 + len(tasks))}

    def _load_kept(self, tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:
        for number, task in enumerate(tasks[1:], start=2):
            name = f"task/{number}/factors"
            self._factors[task.text("name")] = flat.split(name, tensors[name].float(), self._factor_shapes())
