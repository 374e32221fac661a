"""A plain network while masks on its kernels are learned: each layer's kernels are made anew in every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from grown.methods.masked.masks import Cut, Mask
from grown.methods.plain import plain_groups
from grown.nn import accelerate


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
        if (kernels := self._fusable(weight)) is not None:
            scores, cut = (self.mask.scores, self.mask.cut()) if isinstance(self.mask, Cut) else (None, None)
            fast: Tensor = kernels.fused_elements(
                weight, self.frozen, self.trainable, scores, cut, accelerate.conv_precision()
            )
            return fast
        if self.trainable is not None:
            weight = torch.where(self.trainable, weight, cast(Tensor, self.frozen))
        return weight if self.mask is None else weight * self.mask()

    def _fusable(self, weight: Tensor) -> Any:
        """The fused kernels, where they compute the same as these lines: in a step on a GPU, masks that cut."""
        scores = self.mask.scores if isinstance(self.mask, Cut) else None
        if (scores is None) != (self.mask is None) or not torch.is_grad_enabled():
            return None
        if scores is None and self.trainable is None:
            return None
        return accelerate.fused_for(weight, self.trainable, self.frozen, scores)


class MaskedLayer(nn.Module):
    """A convolution or linear layer that is run with the kernels that are made of its own."""

    makes_weights: ClassVar[bool] = True

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
