"""One layer's kernels, and who owns each of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grown.nn import axes
from grown.nn.axes import Widths
from grown.nn.graph import Node
from grown.nn.groups import Axis, Channels

FREE = 0
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}  # how kernels are stored


class Bank:
    """Kernels (out, in, *k) and their owners (out, in): 0 is free, otherwise the task that trained the kernel.

    An owned kernel never changes, and channels are only ever appended to a segment; there is no other way to write.
    """

    def __init__(self, name: str, rows: Axis, columns: Axis | None, kernel: tuple[int, ...], widths: Widths) -> None:
        self.name = name
        self.rows = rows
        self.columns = columns  # None: depthwise, one kernel a channel
        self.kernel = kernel
        self._weight = torch.zeros((*self.extent(widths), *kernel))
        self._owner = torch.zeros(self.extent(widths), dtype=torch.int32)

    @property
    def weight(self) -> Tensor:
        """A copy of all kernels; free ones are zero."""
        return self._weight.clone()

    @property
    def kernels(self) -> Tensor:
        """All kernels, to be read from and never written to."""
        return self._weight

    @property
    def owner(self) -> Tensor:
        """A copy of the owners."""
        return self._owner.clone()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, in kernels."""
        return self._owner.shape[0], self._owner.shape[1]

    @property
    def kernel_size(self) -> int:
        """Weights in one kernel."""
        return math.prod(self.kernel)

    def owned(self) -> int:
        """How many kernels somebody owns."""
        return int((self._owner > FREE).sum())

    def extent(self, widths: Widths) -> tuple[int, int]:
        """Rows and columns at these widths."""
        columns = sum(widths[g] for g in self.columns.groups) if self.columns else 1
        return sum(widths[g] for g in self.rows.groups), columns

    def view(self, physical: Widths, seen: Widths) -> tuple[Tensor, Tensor]:
        """Row and column positions of a task that sees the first `seen` channels of each group."""
        columns = axes.prefix(self.columns, physical, seen) if self.columns else torch.zeros(1, dtype=torch.int64)
        return axes.prefix(self.rows, physical, seen), columns

    def at(self, widths: Widths, kept: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Row and column positions of the kept channels (positions within each group) at these widths."""
        columns = axes.chosen(self.columns, widths, kept) if self.columns else torch.zeros(1, dtype=torch.int64)
        return axes.chosen(self.rows, widths, kept), columns

    def owners(self, physical: Widths, seen: Widths) -> Tensor:
        """A copy of the owners that such a task sees."""
        rows, columns = self.view(physical, seen)
        return self._owner[rows[:, None], columns]

    def read(self, physical: Widths, seen: Widths) -> tuple[Tensor, Tensor]:
        """A copy of the kernels and owners that such a task sees."""
        rows, columns = self.view(physical, seen)
        return self._weight[rows[:, None], columns], self._owner[rows[:, None], columns]

    def grow(self, old: Widths, new: Widths) -> None:
        """Append channels to the segments: from `old` widths to `new` ones. The new kernels are free."""
        if any(a > b for a, b in zip(old, new, strict=True)):
            raise ValueError(f"{self.name}: channels are only ever appended, but got {old} to {new}")
        rows, columns = self.view(new, old)
        weight = torch.zeros((*self.extent(new), *self.kernel))
        owner = torch.zeros(self.extent(new), dtype=torch.int32)
        weight[rows[:, None], columns] = self._weight
        owner[rows[:, None], columns] = self._owner
        self._weight, self._owner = weight, owner

    def claim(self, kernels: Tensor, which: Tensor, task: int) -> None:
        """Give free kernels their values and their owner, once and for all."""
        if task <= FREE or task <= int(self._owner.max() if self._owner.numel() else 0):
            raise ValueError(f"{self.name}: task numbers rise; {task} is taken")
        if bool((self._owner[which] != FREE).any()):
            raise ValueError(f"{self.name}: an owned kernel cannot be claimed again")
        self._weight[which] = kernels[which]
        self._owner[which] = task

    def restore(self, owner: Tensor, kernels: Tensor) -> None:
        """Fill an empty bank from a file: all owners, and the owned kernels in their order."""
        self._owner = owner.to(torch.int32).clone()
        self._weight = torch.zeros((*owner.shape, *self.kernel))
        owned = (self._owner > FREE).view(*owner.shape, *([1] * len(self.kernel)))
        self._weight.masked_scatter_(owned, kernels)  # an index of places would take more memory than the kernels


def no_widths(channels: Channels) -> Widths:
    """The widths before anything was learned: only what touches the input is there."""
    return tuple(group.width if group.fixed else 0 for group in channels.groups)


def make_banks(nodes: list[Node], channels: Channels) -> dict[str, Bank]:
    """An empty bank for each node that owns kernels."""
    banks, widths = {}, no_widths(channels)
    for node in nodes:
        columns = channels.output[node.inputs[0]]
        if node.op == "conv":
            sizes: Any = node.attrs["kernel"]
            kernel: tuple[int, ...] = (int(sizes[0]), int(sizes[1]))
        else:
            kernel = (columns.repeat,)
        rows = channels.output[node.name]
        depthwise = node.op == "conv" and bool(node.attrs["depthwise"])
        banks[node.name] = Bank(node.name, rows, None if depthwise else columns, kernel, widths)
    return banks


def as_stored(kernels: Tensor, kind: str) -> Tensor:
    """The kernels' values as a file of this format gives them back."""
    return kernels.to(FORMATS[kind]).to(kernels.dtype)
