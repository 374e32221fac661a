"""Each task's network is a part of one random network, which costs a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from grown import seeds
from grown.data.task import Task
from grown.io.fields import Fields
from grown.methods.masked.masks import Largest, Mask, drawn
from grown.methods.masked.picking import PickingMethod
from grown.methods.shared.training import Training, Weights
from grown.methods.supsup.bank import signed_constants
from grown.nn.graph import Graph


class SupSup(PickingMethod):
    """A task uses the random weights with the largest scores, and trains scores, norms, biases and head alone."""

    name: ClassVar[str] = "supsup"

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._bank_seed = seeds.derive(self.config.seed, "bank") >> 10  # a whole number that JSON keeps

    def _begin(self, task: Task) -> nn.Module:
        """The random kernels; norms and biases as they start."""
        network = self.training.fresh(task, self._seed(task))
        network.load_state_dict(self._drawn(), strict=False)
        return network

    def _drawn(self) -> Weights:
        if not self._shared:
            self._shared = {key: signed_constants(self._bank_seed, key, s) for key, s in self._kernel_shapes.items()}
        return self._shared

    def _mask(self, key: str, training: Training) -> Mask:
        config = self.config
        draw = seeds.generator(config.seed, "scores", training.task.name, key)
        return Largest(drawn(self._kernel_shapes[key], config.supsup_start, draw), config.supsup_density)

    def _new_kernels(self, is_new: bool) -> int:  # noqa: ARG002
        return 0

    def _kernels_of(self, task: str) -> Weights:
        self._drawn()
        return super()._kernels_of(task)

    # --- files: the bank is its seed -------------------------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        return {**super()._about(), "bank_seed": self._bank_seed}

    def _load_tasks(self, meta: Fields, tensors: dict[str, Tensor]) -> None:
        self._bank_seed = meta.whole("bank_seed")
        super()._load_tasks(meta, tensors)

    def _bank(self) -> dict[str, Tensor]:
        return {}

    def _bank_shapes(self) -> dict[str, tuple[Any, ...]]:
        return {}

    def _load_bank(self, tensors: Mapping[str, Tensor]) -> None:
        """Drawn when it is asked for."""
