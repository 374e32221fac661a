"""A plain network's values by channel: units taken out, copied, or added behind the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from grown.methods.shared.training import Weights
from grown.nn import axes
from grown.nn.axes import Widths
from grown.nn.bank import Bank, make_banks
from grown.nn.graph import Graph
from grown.nn.groups import Axis, Channels
from grown.nn.plain import build, fill, start

Flags = list[Tensor]  # for each channel group, a flag per channel


@dataclass(frozen=True)
class Shape:
    """What the values of a network mean: which of them belong to which unit."""

    graph: Graph
    channels: Channels

    @cached_property
    def banks(self) -> dict[str, Bank]:
        """For each layer with kernels, its axes; the kernels themselves are not there."""
        return make_banks(self.graph.banked(), self.channels)

    @property
    def head_axis(self) -> Axis:
        """What the head reads."""
        return self.channels.output[self.graph.head.inputs[0]]

    def kernels(self, state: Weights) -> Weights:
        """By layer, its kernels (out, in, *k): a view."""
        found = {}
        for name, bank in self.banks.items():
            weight = state[f"{name}.weight"]
            found[name] = weight.view(weight.shape[0], -1, *bank.kernel)
        return found

    def head(self, state: Weights) -> Tensor:
        """The head's weight (classes, channels, features a channel): a view."""
        weight = state[f"{self.graph.head.name}.weight"]
        return weight.view(weight.shape[0], -1, self.head_axis.repeat)

    def gather(self, state: Weights, widths: Widths, sources: list[Tensor]) -> Weights:
        """The network whose channels are these of each group's, in this order; one may come twice."""
        found, kernels, banks = {}, self.kernels(state), self.banks
        head = self.graph.head.name
        for key, value in state.items():
            name, part = key.rsplit(".", 1)
            if name in banks and part == "weight":
                rows, columns = banks[name].at(widths, sources)
                taken = kernels[name][rows[:, None], columns]
                found[key] = taken.flatten(1) if value.ndim == 2 else taken
            elif name == head:
                columns = axes.chosen(self.head_axis, widths, sources)
                found[key] = self.head(state)[:, columns].flatten(1) if part == "weight" else value
            elif value.ndim == 1:
                found[key] = value[axes.chosen(self.channels.output[name], widths, sources)]
        return found

    def widen(self, state: Weights, old: Widths, new: Widths) -> Weights:
        """The same network with channels behind each group's: zeros, and norms as PyTorch starts them."""
        classes = len(self.head(state))
        wide = start(build(self.graph, self.channels, new, classes)).state_dict()
        banks, kernels, old_kernels = self.banks, self.kernels(wide), self.kernels(state)
        head = self.graph.head.name
        for key, value in wide.items():
            name, part = key.rsplit(".", 1)
            if name in banks and part == "weight":
                rows, columns = banks[name].view(new, old)
                kernels[name][rows[:, None], columns] = old_kernels[name]
            elif key == f"{head}.weight":
                self.head(wide)[:, axes.prefix(self.head_axis, new, old)] = self.head(state)
            elif name == head:
                value.copy_(state[key])
            elif value.ndim == 1:
                value[axes.prefix(self.channels.output[name], new, old)] = state[key]
        return {key: value for key, value in wide.items() if value.ndim}

    def network(self, state: Weights, widths: Widths) -> nn.Module:
        """A network with these values, on the CPU."""
        return fill(build(self.graph, self.channels, widths, len(self.head(state))), state)

    def spread(self, bank: Bank, flags: Flags) -> tuple[Tensor, Tensor]:
        """Flags of channels along a layer's rows and columns; a depthwise layer's one column has none."""
        columns = axes.spread(bank.columns, flags) if bank.columns else torch.zeros(1, dtype=torch.bool)
        return axes.spread(bank.rows, flags), columns

    def whole(self, flags: Flags) -> Flags:
        """Flags widened to whole quanta, and none on channels that must be as many as they are."""
        found = []
        for group, mine in zip(self.channels.groups, flags, strict=True):
            quanta = mine.view(-1, group.quantum).any(1).repeat_interleave(group.quantum)
            found.append(torch.zeros_like(mine) if group.fixed else quanta)
        return found


def values_of(network: nn.Module) -> Weights:
    """A network's values on the CPU, copied; counts of batches are none."""
    state = network.state_dict().items()
    return {key: value.detach().cpu().clone().contiguous() for key, value in state if value.ndim}


def along(axis: Axis, widths: Widths, values: Tensor) -> list[tuple[int, Tensor]]:
    """Values along an axis, divided into its groups' segments."""
    return list(zip(axis.groups, torch.split(values, [widths[group] for group in axis.groups]), strict=True))
