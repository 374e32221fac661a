"""Weights that are made of others while they train, and what is left of small ones."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


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
