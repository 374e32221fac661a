"""Weights that are made of others while they train, and what is left of small ones."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class Held(nn.Module):
    """A weight of which only a part learns; the rest is as it was, whatever an optimizer does."""

    free: Tensor
    fixed: Tensor

    def __init__(self, weight: Tensor, free: Tensor) -> None:
        super().__init__()
        self.register_buffer("free", free, persistent=False)
        self.register_buffer("fixed", weight.detach().clone(), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return torch.where(self.free, weight, self.fixed)


def attach(network: nn.Module, key: str, module: nn.Module) -> None:
    """Make a weight of a network by this module, a parametrization of PyTorch's kind."""
    parametrize.register_parametrization(network.get_submodule(key.removesuffix(".weight")), "weight", module)


def detach(network: nn.Module, keys: Iterable[str]) -> None:
    """The network has plain weights again, as they were made last."""
    for key in keys:
        layer = network.get_submodule(key.removesuffix(".weight"))
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def cut(values: Tensor, strength: float) -> Tensor:
    """Zero where a value is not above the strength of its L1 penalty, around which steps would leave it."""
    return torch.where(values.abs() > strength, values, 0.0)
