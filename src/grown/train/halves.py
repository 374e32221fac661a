"""A plain network's weights in half precision for a step on a GPU: copied all at once, gradients read back all at once.

Autocast makes the same copies with a launch for each layer, and another for each gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

LAYERS = (nn.Conv2d, nn.Linear)  # what autocast runs in half precision; layers of other kinds do as they do


class Halves:
    """Runs a network on bf16 copies of the weights of its plain layers."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._names: list[str] = []
        self._full: list[Tensor] = []
        made = tuple(f"{name}." for name, layer in network.named_modules() if getattr(layer, "makes_weights", False))
        for name, layer in network.named_modules():
            if name.startswith(made):
                continue  # in half precision where they are made
            if type(layer) in LAYERS and (weight := layer.get_parameter("weight")).requires_grad:
                self._names.append(f"{name}.weight")
                self._full.append(weight)
        self._halves = [torch.empty_like(weight, dtype=torch.bfloat16).requires_grad_() for weight in self._full]

    def __call__(self, x: Tensor) -> Tensor:
        """The network's answers, with the weights as they are now."""
        if self._full:
            with torch.no_grad():
                torch._foreach_copy_(self._halves, self._full)
        copies = dict(zip(self._names, self._halves, strict=True))
        answers: Tensor = functional_call(self._network, copies, (x,))
        return answers

    def collect(self) -> None:
        """Give the weights the gradients of their copies."""
        targets, gradients = [], []
        for full, half in zip(self._full, self._halves, strict=True):
            if half.grad is None:
                raise ValueError("a weight that is trained takes no part in the loss")
            full.grad = torch.empty_like(full)
            targets.append(full.grad)
            gradients.append(half.grad)
            half.grad = None
        if gradients:
            torch._foreach_copy_(targets, gradients)
