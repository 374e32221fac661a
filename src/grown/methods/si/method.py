"""Synaptic intelligence (Zenke, Poole and Ganguli, 2017): importance gathered along the way of the training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from grown.methods.shared.quadratic import QuadraticMethod
from grown.methods.shared.training import Guard, Training, Weights


class SI(QuadraticMethod):
    """One network; a quadratic penalty holds what lowered the loss of earlier tasks while they were learned."""

    name: ClassVar[str] = "si"

    def _strength(self) -> float:
        return self.config.si_strength

    def _guard(self, training: Training) -> Guard:
        guard = super()._guard(training)
        path = Path(training, self._springs(training) if self._importance else {})
        return Guard(penalty=guard.penalty, around_update=path.step, aside=path)

    def _weigh(self, training: Training, guard: Guard) -> Weights:
        """omega / (way^2 + xi); what raised the loss in sum matters nothing."""
        if not isinstance(guard.aside, Path):
            raise TypeError("a training of SI records its path")
        found = {}
        for (key, kernel), gain in zip(training.kernels.items(), guard.aside.buffers(), strict=True):
            way = kernel.detach() - training.start[key]
            importance = gain.clamp_min(0.0) / (way.square() + self.config.si_damping)
            found[key] = importance.cpu().contiguous()
        return found


class Path(nn.Module):
    """For each kernel weight the sum over steps of -gradient * change: what its own way took off the task's loss.

    Buffers, so that a training which goes on later goes on with them.
    """

    def __init__(self, training: Training, springs: Weights) -> None:
        super().__init__()
        self._kernels = dict(training.kernels)  # in a dict: they are the network's, not parameters of this module
        self._start = training.start
        self._springs = springs
        for number, kernel in enumerate(self._kernels.values()):
            self.register_buffer(str(number), torch.zeros_like(kernel, requires_grad=False))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one update."""
        with torch.no_grad():
            slopes = [self._slope(key, kernel) for key, kernel in self._kernels.items()]
            before = [kernel.detach().clone() for kernel in self._kernels.values()]
        yield
        with torch.no_grad():
            for gain, kernel, slope, old in zip(self.buffers(), self._kernels.values(), slopes, before, strict=True):
                gain.sub_(slope * (kernel - old))

    def _slope(self, key: str, kernel: nn.Parameter) -> Tensor:
        """The gradient of the task's own loss: without the penalty's part of it."""
        if kernel.grad is None:
            return torch.zeros_like(kernel)
        if not self._springs:
            return kernel.grad
        return kernel.grad - 2 * self._springs[key] * (kernel - self._start[key])
