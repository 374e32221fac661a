"""The weights that all tasks share, one by one: what each is, and which task owns it."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from grown.nn.axes import Widths
from grown.nn.bank import Bank, make_banks, no_widths
from grown.nn.graph import Graph
from grown.nn.groups import Channels

FREE = 0
MOST_TASKS = 255  # an owner is one byte


class Elements:
    """Weights (out, in, *k) of each layer and their owners: 0 is free, otherwise the number of a task.

    An owned weight never changes, and channels are only ever appended; there is no other way to write.
    """

    def __init__(self, graph: Graph, channels: Channels) -> None:
        self.channels = channels
        self.banks: dict[str, Bank] = make_banks(graph.banked(), channels)  # where channels stand; their kernels idle
        self.widths: Widths = no_widths(channels)
        self._values = {name: torch.zeros(self.shape(name, self.widths)) for name in self.banks}
        self._owners = {name: torch.zeros(self.shape(name, self.widths), dtype=torch.uint8) for name in self.banks}

    def on(self, device: str) -> Elements:
        """The same weights to be read on a device."""
        there = copy.copy(self)
        there._values = {name: values.to(device) for name, values in self._values.items()}
        there._owners = {name: owners.to(device) for name, owners in self._owners.items()}
        return there

    def shape(self, name: str, widths: Widths) -> tuple[int, ...]:
        """A layer's shape at these widths."""
        bank = self.banks[name]
        return (*bank.extent(widths), *bank.kernel)

    def count(self, widths: Widths) -> int:
        """Weights of all layers at these widths."""
        return sum(math.prod(self.shape(name, widths)) for name in self.banks)

    def seen(self, name: str, widths: Widths) -> tuple[Tensor, Tensor]:
        """The weights and owners that a task of these widths sees; to be read, never to be written to."""
        if widths == self.widths:
            return self._values[name], self._owners[name]
        rows, columns = self.banks[name].view(self.widths, widths)
        return self._values[name][rows[:, None], columns], self._owners[name][rows[:, None], columns]

    def histogram(self, widths: Widths) -> list[int]:
        """How many weights each owner has within these widths, from 0, nobody, on."""
        total = torch.zeros(MOST_TASKS + 1, dtype=torch.int64)
        for name in self.banks:
            total += torch.bincount(self.seen(name, widths)[1].flatten(), minlength=len(total))
        return [int(count) for count in total]

    def spread(self, name: str, widths: Widths) -> tuple[Tensor, Tensor]:
        """Copies of all weights and owners where they stand in a network that is at least as wide; 0 elsewhere."""
        if widths == self.widths:
            return self._values[name].clone(), self._owners[name].clone()
        rows, columns = self.banks[name].view(widths, self.widths)
        values = torch.zeros(self.shape(name, widths))
        owners = torch.zeros(self.shape(name, widths), dtype=torch.uint8)
        values[rows[:, None], columns] = self._values[name]
        owners[rows[:, None], columns] = self._owners[name]
        return values, owners

    def grow(self, widths: Widths) -> None:
        """Append channels, whose weights are free."""
        if any(a > b for a, b in zip(self.widths, widths, strict=True)):
            raise ValueError(f"channels are only ever appended, but got {self.widths} to {widths}")
        wide = {name: self.spread(name, widths) for name in self.banks}
        self._values = {name: values for name, (values, _) in wide.items()}
        self._owners = {name: owners for name, (_, owners) in wide.items()}
        self.widths = widths

    def claim(self, name: str, values: Tensor, which: Tensor, task: int) -> None:
        """Give free weights their values and their owner, once and for all."""
        if not FREE < task <= MOST_TASKS:
            raise ValueError(f"{name}: task {task} cannot own a weight")
        if bool(((self._owners[name] != FREE) & which).any()):
            raise ValueError(f"{name}: an owned weight cannot be claimed again")
        self._values[name] = torch.where(which, values, self._values[name])
        self._owners[name].masked_fill_(which, task)

    def owners(self, name: str) -> Tensor:
        """A copy of a layer's owners."""
        return self._owners[name].clone()

    def owned(self, name: str) -> Tensor:
        """A layer's weights that have an owner, behind each other."""
        return self._values[name][self._owners[name] != FREE]

    def restore(self, name: str, owners: Tensor, values: Tensor) -> None:
        """Fill a layer from a file: all owners, and the owned weights in their order."""
        self._owners[name] = owners.to(torch.uint8)
        self._values[name] = torch.zeros(owners.shape)
        self._values[name].masked_scatter_(self._owners[name] != FREE, values)
