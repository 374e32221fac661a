"""SGD and Adam over torch's own fused updates, with the little that the loop needs.

`torch.optim`'s classes compute the same to the last bit, but load torch's compiler at their first step, only to be left
alone by it: seconds of imports in every process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Optimizer(ABC):
    """Groups of parameters, each with its rate `lr` and `weight_decay`, and what is remembered of each parameter."""

    def __init__(self, groups: list[dict[str, Any]], rate: float) -> None:
        self.param_groups = [{"weight_decay": 0.0, **group, "lr": rate, "full_rate": rate} for group in groups]
        self.state: defaultdict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)

    @torch.no_grad()
    def step(self) -> None:
        """Let the gradients change the parameters; one without a gradient stays as it is."""
        for group in self.param_groups:
            having = [parameter for parameter in group["params"] if parameter.grad is not None]
            if having:
                self._update(group, having, [parameter.grad for parameter in having])

    def zero_grad(self) -> None:
        """Let the gradients go."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @abstractmethod
    def _update(self, group: dict[str, Any], parameters: list[Any], gradients: list[Tensor]) -> None:
        """Of the parameters that have gradients."""


class SGD(Optimizer):
    """With Nesterov's momentum if there is any."""

    def __init__(self, groups: list[dict[str, Any]], rate: float, momentum: float) -> None:
        super().__init__(groups, rate)
        self._momentum = momentum

    def _update(self, group: dict[str, Any], parameters: list[Any], gradients: list[Tensor]) -> None:
        buffers = [self.state[parameter].get("momentum_buffer") for parameter in parameters]
        sgd(
            parameters,
            gradients,
            buffers,
            fused=True,
            weight_decay=group["weight_decay"],
            momentum=self._momentum,
            lr=group["lr"],
            dampening=0.0,
            nesterov=self._momentum > 0,
            maximize=False,
        )
        if self._momentum > 0:
            for parameter, buffer in zip(parameters, buffers, strict=True):
                self.state[parameter]["momentum_buffer"] = buffer  # type: ignore[assignment]


class Adam(Optimizer):
    """As it was published; weight decay is part of the gradient."""

    def _update(self, group: dict[str, Any], parameters: list[Any], gradients: list[Tensor]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        known = [self.state[parameter] for parameter in parameters]
        adam(
            parameters,
            gradients,
            [state["exp_avg"] for state in known],
            [state["exp_avg_sq"] for state in known],
            [],
            [state["step"] for state in known],
            fused=True,
            capturable=parameters[0].is_cuda,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=EPSILON,
            maximize=False,
        )
