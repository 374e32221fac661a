"""What columns consist of: which layers read earlier columns, and the shapes of all that is stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from grown.errors import ConfigError
from grown.growth import budget
from grown.nn.axes import Widths
from grown.nn.bank import Bank, make_banks
from grown.nn.graph import BANKED, Graph, Node
from grown.nn.groups import Channels
from grown.nn.plain import divide, own_shapes

Shapes = dict[str, torch.Size]


@dataclass(frozen=True)
class Layout:
    """Columns of equal widths over one graph, numbered from 1.

    In every column but the first, a layer that mixes channels reads beside its own column's activations as many
    adapted ones of all earlier columns: its lateral.
    """

    graph: Graph
    channels: Channels
    widths: Widths

    @cached_property
    def banks(self) -> dict[str, Bank]:
        """Empty banks, for the extents of a column's layers."""
        return make_banks(self.graph.banked(), self.channels)

    @cached_property
    def places(self) -> dict[str, str]:
        """Layers with a lateral, the head among them, and the node that each reads.

        A depthwise layer mixes nothing. Without kernels between a layer and the input, all columns read the same.
        """
        trained: set[str] = set()
        for node in self.graph.nodes:
            if node.op in BANKED or any(source in trained for source in node.inputs):
                trained.add(node.name)
        return {
            node.name: node.inputs[0]
            for node in self.graph.nodes
            if node.op in (*BANKED, "head") and not node.attrs.get("depthwise") and node.inputs[0] in trained
        }

    @cached_property
    def needed(self) -> set[str]:
        """The nodes of an earlier column that laterals depend on."""
        found = set(self.places.values())
        for node in reversed(self.graph.nodes):
            if node.name in found:
                found.update(node.inputs)
        return found

    def width(self, source: str) -> int:
        """The channels of a node in one column."""
        return self.channels.width(self.channels.output[source], self.widths)

    def times(self, node: Node, number: int) -> int:
        """How many times its column's channels a layer reads: twice where it has a lateral."""
        return 2 if number > 1 and node.name in self.places else 1

    def kernel_shapes(self, number: int) -> Shapes:
        """The weights of a column's layers; those of laterals stand behind those of the column itself."""
        shapes = {}
        for node in self.graph.banked():
            bank = self.banks[node.name]
            rows, columns = bank.extent(self.widths)
            columns *= self.times(node, number)
            inner = (columns * bank.kernel_size,) if node.op == "linear" else (columns, *bank.kernel)
            shapes[f"{node.name}.weight"] = torch.Size([rows, *inner])
        return shapes

    def lateral_shapes(self, number: int) -> Shapes:
        """The 1x1 layers (own channels, channels of all earlier columns), by the layer that reads them."""
        if number == 1:
            return {}
        widths = {name: self.width(source) for name, source in self.places.items()}
        return {name: torch.Size([width, (number - 1) * width]) for name, width in widths.items()}

    def own_shapes(self, number: int, classes: int) -> dict[str, Shapes]:
        """Norms and biases in "own", and the head."""
        parts = divide(self.graph, own_shapes(self.graph, self.channels, self.widths, classes))
        head, key = self.graph.head, f"{self.graph.head.name}.weight"
        parts["head"][key] = torch.Size([classes, parts["head"][key][1] * self.times(head, number)])
        return parts

    def parameters(self, number: int) -> int:
        """Weights of a column's layers and laterals."""
        shapes = (*self.kernel_shapes(number).values(), *self.lateral_shapes(number).values())
        return sum(math.prod(shape) for shape in shapes)


def widths_for(graph: Graph, channels: Channels, columns: int, limit: float, base: int, shape: str) -> Widths:
    """The widest columns of which so many have at most `limit` parameters in all."""

    def in_all(widths: Widths) -> int:
        layout = Layout(graph, channels, widths)
        return sum(layout.parameters(number) for number in range(1, columns + 1))

    def fits(widths: Widths) -> bool:
        return in_all(widths) <= limit

    if (least := in_all(budget.scaled_widths(channels, 0.0))) > limit:
        raise ConfigError(
            f"{columns} columns of the smallest width are {least / base:.4g}x of this template, but max_size is "
            f"{limit / base:.4g}x; raise it, or set pnn_width"
        )
    return budget.largest_widths(budget.scaling(channels, fits, shape), fits)
