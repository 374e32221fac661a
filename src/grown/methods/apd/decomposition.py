"""theta_t = shared * sigma(v_t) + tau_t + what is shared locally: the parts of each task's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from grown.io import flat
from grown.methods.apd.sparse import Sparse
from grown.methods.shared.training import Weights
from grown.methods.shared.weights import attach, detach

Shapes = Mapping[str, torch.Size]


def masked(shared: Tensor, v: Tensor) -> Tensor:
    """shared * sigma(v), one v an output unit."""
    return shared * torch.sigmoid(v).view(-1, *([1] * (shared.ndim - 1)))


class Adaptive(nn.Module):
    """Makes a layer's weight of the shared one while a task is learned: a parametrization of PyTorch's kind."""

    def __init__(self, shared: Tensor) -> None:
        super().__init__()
        self.v = nn.Parameter(shared.new_zeros(len(shared)))
        self.tau = nn.Parameter(shared.detach().clone())  # starts at the shared one, as published

    def forward(self, shared: Tensor) -> Tensor:
        return masked(shared, self.v) + self.tau


def decompose(network: nn.Module, keys: Shapes) -> None:
    """From now on the network trains the parts of these weights."""
    for key in keys:
        attach(network, key, Adaptive(network.get_parameter(key)))


def compose(network: nn.Module, weights: Weights) -> None:
    """The network has plain weights again: these."""
    detach(network, weights)
    for key, weight in weights.items():
        network.get_parameter(key).data.copy_(weight)


def parts(network: nn.Module, keys: Shapes) -> dict[str, Adaptive]:
    """What the network trains beside the shared weights, by their names."""
    found = {}
    for key in keys:
        module = network.get_submodule(key.removesuffix(".weight") + ".parametrizations.weight.0")
        if not isinstance(module, Adaptive):
            raise TypeError(f"{key} is not decomposed")
        found[key] = module
    return found


@dataclass
class Decomposition:
    """What each task's kernels are made of beside the shared ones."""

    shapes: Shapes
    masks: dict[str, Weights] = field(default_factory=dict)  # task -> v
    tau: dict[str, Sparse] = field(default_factory=dict)  # task -> tau
    group: dict[str, int] = field(default_factory=dict)  # task -> its locally shared part, for tasks that have one
    local: list[Sparse] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Weights of one network."""
        return sum(shape.numel() for shape in self.shapes.values())

    def adaptive(self, task: str) -> Tensor:
        """tau and what is locally shared together, as one vector."""
        vector = self.tau[task].dense(self.length)
        return vector + self.locally(task) if task in self.group else vector

    def locally(self, task: str) -> Tensor:
        """What is locally shared, as one vector."""
        return self.local[self.group[task]].dense(self.length) if task in self.group else torch.zeros(self.length)

    def theta(self, shared: Weights, task: str) -> Weights:
        """A task's kernels."""
        adaptive = flat.split("tau", self.adaptive(task), self.shapes)
        return {key: masked(shared[key], self.masks[task][key]) + adaptive[key] for key in self.shapes}
