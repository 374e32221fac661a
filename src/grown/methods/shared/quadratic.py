"""A spring on each kernel weight, as stiff as the weight matters: what EWC, SI and MAS have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grown.errors import FileError
from grown.io import flat
from grown.io.fields import Fields
from grown.methods.shared.method import SharedMethod
from grown.methods.shared.training import Guard, Training, Weights
from grown.nn.graph import Graph


class QuadraticMethod(SharedMethod):
    """Adds strength * sum importance (w - w*)^2; w* are the kernels as the last task left them.

    Importances of all tasks are summed, and w* is in the file anyway: the method costs one number a kernel weight,
    however many tasks there are.
    """

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._importance: Weights = {}  # of all tasks so far

    def _strength(self) -> float:
        raise NotImplementedError

    def _weigh(self, training: Training, guard: Guard) -> Weights:
        """How much each kernel weight matters to the task that was learned."""
        raise NotImplementedError

    def _springs(self, training: Training) -> Weights:
        """strength * importance, on the device; at most what a step of gradient descent does not overshoot.

        A step moves w by 2 rate spring (w* - w). At a spring of 1 / (2 rate) that is all the way; beyond it, with
        momentum, w swings ever farther.
        """
        most, strength = 0.5 / training.recipe.rate, self._strength()
        return {
            key: (strength * self._importance[key]).clamp_max(most).to(kernel.device)
            for key, kernel in training.kernels.items()
        }

    def _guard(self, training: Training) -> Guard:
        if not self._importance:
            return Guard()
        kernels, anchors = list(training.kernels.values()), list(training.start.values())
        springs = list(self._springs(training).values())

        def penalty() -> Tensor:
            terms = [
                (spring * (kernel - anchor).square()).sum()
                for spring, kernel, anchor in zip(springs, kernels, anchors, strict=True)
            ]
            return torch.stack(terms).sum()

        return Guard(penalty=penalty)

    def _remember(self, training: Training, guard: Guard) -> None:
        found = self._weigh(training, guard)
        before = self._importance or {key: torch.zeros_like(value) for key, value in found.items()}
        self._importance = {key: before[key] + value for key, value in found.items()}

    def _kept(self) -> dict[str, Tensor]:
        return {"shared/importance": flat.flatten(self._importance, self._kernel_shapes)}

    def _kept_shapes(self, tasks: list[Fields]) -> dict[str, tuple[Any, ...]]:
        return {"shared/importance": (torch.float32, None)} if tasks else {}

    def _load_kept(self, tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:  # noqa: ARG002
        stored = tensors["shared/importance"]
        if bool((stored < 0).any()):
            raise FileError("shared/importance holds a negative number")
        self._importance = flat.split("shared/importance", stored, self._kernel_shapes)
