"""A frozen layer and a low-rank update of it: W + B A."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rank_within(shape: torch.Size, rank: int) -> int:
    """The rank of a layer's update: no more than has as many numbers as the layer itself."""
    rows, columns = shape[0], math.prod(shape[1:])
    return max(1, min(rank, rows * columns // (rows + columns)))


def factor_shapes(kernels: Mapping[str, torch.Size], rank: int) -> dict[str, torch.Size]:
    """Names and shapes of both factors of each layer, from those of its weights (out, in, *k).

    A layer is the matrix out x (in * k * k); a depthwise one is channels x (k * k).
    """
    shapes = {}
    for key, shape in kernels.items():
        name, mine = key.removesuffix(".weight"), rank_within(shape, rank)
        shapes[f"{name}.b"] = torch.Size([shape[0], mine])
        shapes[f"{name}.a"] = torch.Size([mine, math.prod(shape[1:])])
    return shapes


def updated(weight: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """W + B A, rank by rank: each operation rounds once and in this order, so that the bits are the same anywhere."""
    total = weight.flatten(1).clone()
    for column, row in zip(b.unbind(1), a.unbind(0), strict=True):
        total += column[:, None] * row
    return total.view(weight.shape)


class LowRank(nn.Module):
    """A convolution or linear layer in training: its weights are frozen, an update of them and the bias are not."""

    frozen: Tensor

    def __init__(self, layer: nn.Conv2d | nn.Linear, b: Tensor, a: Tensor) -> None:
        super().__init__()
        self._layer = (layer,)  # in a tuple: its weights are not this module's to train
        self.register_buffer("frozen", layer.weight.detach().flatten(1).clone())
        self.b, self.a, self.bias = nn.Parameter(b), nn.Parameter(a), layer.bias

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self._layer
        weight = torch.addmm(self.frozen, self.b, self.a)
        if isinstance(layer, nn.Linear):
            return F.linear(x, weight, self.bias)
        y: Tensor = layer._conv_forward(x, weight.view(layer.weight.shape), self.bias)
        return y

    @torch.no_grad()
    def plain(self) -> nn.Conv2d | nn.Linear:
        """The plain layer with the update in its weights."""
        (layer,) = self._layer
        layer.weight.copy_(updated(self.frozen.cpu(), self.b.cpu(), self.a.cpu()).view(layer.weight.shape))
        layer.bias = self.bias
        return layer.to(self.b.device).train(self.training)
