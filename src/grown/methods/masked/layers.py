"""A plain network while masks on its kernels are learned: each layer's kernels are made anew in every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from grown.methods.masked.masks import Mask
from grown.methods.plain import plain_groups


class Kernels(nn.Module):
    """What a layer computes with: its weights where they train, frozen ones elsewhere, behind a mask.

    Without `trainable` the layer's weights are all frozen. Its gradient stays off what does not train, so neither
    momentum nor weight decay reaches what is read from there.
    """

    trainable: Tensor | None
    frozen: Tensor | None

    def __init__(self, mask: Mask | None, trainable: Tensor | None = None, frozen: Tensor | None = None) -> None:
        super().__init__()
        self.mask = mask
        self.register_buffer("trainable", trainable, persistent=False)
        self.register_buffer("frozen", frozen, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        if self.trainable is not None:
            weight = torch.where(self.trainable, weight, cast(Tensor, self.frozen))
        return weight if self.mask is None else weight * self.mask()


class MaskedLayer(nn.Module):
    """A convolution or linear layer that is run with the kernels that are made of its own."""

    def __init__(self, layer: nn.Module, kernels: Kernels) -> None:
        super().__init__()
        self.layer = layer
        self.kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = functional_call(self.layer, {"weight": self.kernels(self.layer.weight)}, (x,))
        return y


def install(network: nn.Module, kernels: Mapping[str, Kernels]) -> None:
    """Put these before the layers that their keys name."""
    for key, made in kernels.items():
        name = key.removesuffix(".weight")
        layer = cast(Any, network.get_submodule(name))
        layer.weight.requires_grad_(made.trainable is not None)
        network.set_submodule(name, MaskedLayer(layer, made.to(layer.weight.device)))


def remove(network: nn.Module, kernels: Mapping[str, Kernels]) -> None:
    """The plain layers again, as they are."""
    for key in kernels:
        name = key.removesuffix(".weight")
        network.set_submodule(name, cast(MaskedLayer, network.get_submodule(name)).layer)


def masked_groups(network: nn.Module) -> list[dict[str, Any]]:
    """The parameters that train, by kind; scores have their own."""
    scores = [module.scores for module in network.modules() if isinstance(module, Mask)]
    groups = [
        {**group, "params": [parameter for parameter in group["params"] if parameter.requires_grad]}
        for group in plain_groups(network, scores)
    ]
    groups = [group for group in groups if group["params"]]
    return [*groups, {"name": "scores", "params": scores}] if scores else groups
