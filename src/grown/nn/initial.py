"""New kernels are drawn as the template's own were: with its deviation, scaled to the present fan-in."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from grown import seeds
from grown.nn.graph import Graph


def measure_gains(template: nn.Module, graph: Graph) -> dict[str, float]:
    """Each layer's standard deviation times the root of its fan-in, as the template was initialised."""
    modules = dict(template.named_modules())
    gains = {}
    for node in graph.banked():
        weight = modules[node.name].weight
        if not isinstance(weight, Tensor):
            raise TypeError(f"{node.name} has no weight")
        fan_in = weight[0].numel()
        spread = float(weight.detach().float().std(unbiased=False))
        # A layer of zeros (or nearly so) would never learn behind a mask: He's value instead.
        gains[node.name] = spread * math.sqrt(fan_in) if spread > 1e-6 else math.sqrt(2.0)
    return gains


class Initializer:
    """Draws one task's new kernels; each draw depends on the task, the layer and the round alone."""

    def __init__(self, gains: dict[str, float], seed: int, task: int) -> None:
        self.gains = gains
        self.seed = seed
        self.task = task

    def generator(self, name: str, round_: int) -> torch.Generator:
        """A generator for one layer in one round of growth."""
        return seeds.generator(self.seed, "init", self.task, name, round_)

    def kernels(self, name: str, extent: tuple[int, int], kernel: tuple[int, ...], round_: int) -> Tensor:
        """Normal kernels (out, in, *k) for a layer of this extent."""
        fan_in = extent[1] * math.prod(kernel)
        spread = self.gains[name] / math.sqrt(max(1, fan_in))
        return torch.empty((*extent, *kernel)).normal_(0.0, spread, generator=self.generator(name, round_))
