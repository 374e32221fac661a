"""Channel groups: which channels of which layers must exist together.

Every producer (the input, a convolution, a linear layer) starts as one run of channels. An addition ties the runs of
its branches together, position by position; where their boundaries differ both are cut finer first. What is tied is
one group, with one width. A concatenation just puts runs behind each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from grown.errors import TemplateError
from grown.nn.graph import Graph, Node

Run = tuple[str, int, int]  # producer, first channel, one past the last


@dataclass(frozen=True)
class Group:
    """Channels with one common width."""

    index: int
    name: str
    width: int  # in the template at 1x
    quantum: int  # cut in multiples of this (group norm)
    unit: int  # grown in multiples of this
    fixed: bool  # touches the network's input
    silent: bool  # a channel without kernels is zero wherever it is read
    mixed: bool  # a local response norm mixes neighbours, so that no channel can be cut
    hidden: bool  # made by linear layers alone


@dataclass(frozen=True)
class Axis:
    """One axis of a tensor: a segment per group, `repeat` features a channel (after flattening)."""

    groups: tuple[int, ...]
    repeat: int = 1


@dataclass(frozen=True)
class Channels:
    """All groups of a graph, and the axes of each node in terms of them."""

    groups: tuple[Group, ...]
    output: dict[str, Axis]  # node -> its output's channels

    def width(self, axis: Axis, widths: tuple[int, ...]) -> int:
        """The channels on this axis at these widths."""
        return sum(widths[group] for group in axis.groups)

    def template_widths(self) -> tuple[int, ...]:
        """Widths at 1x."""
        return tuple(group.width for group in self.groups)


def find_channels(graph: Graph, multiple: int = 1) -> Channels:
    """The channel groups of a graph; they grow in multiples of `multiple` channels."""
    return _Finder(graph, _runs(graph), multiple).channels()


def _produces(node: Node) -> bool:
    return node.op in ("input", "linear") or (node.op == "conv" and not node.attrs["depthwise"])


def _layouts(graph: Graph, cuts: dict[str, set[int]]) -> dict[str, list[Run]]:
    layouts: dict[str, list[Run]] = {}
    for node in graph.nodes:
        if _produces(node):
            marks = sorted(cuts[node.name])
            layouts[node.name] = [(node.name, a, b) for a, b in pairwise(marks)]
        elif node.op == "cat":
            layouts[node.name] = [run for source in node.inputs for run in layouts[source]]
        else:
            layouts[node.name] = layouts[node.inputs[0]]
    return layouts


def _runs(graph: Graph) -> dict[str, list[Run]]:
    """Each node's runs, cut fine enough that the branches of every addition have equal boundaries."""
    cuts = {node.name: {0, node.shape[0]} for node in graph.nodes if _produces(node)}
    while True:
        layouts = _layouts(graph, cuts)
        before = sum(len(marks) for marks in cuts.values())
        for node in graph.nodes:
            if node.op == "add":
                _align(graph, node, [layouts[source] for source in node.inputs], cuts)
        if sum(len(marks) for marks in cuts.values()) == before:
            return layouts


def _align(graph: Graph, node: Node, branches: list[list[Run]], cuts: dict[str, set[int]]) -> None:
    shapes = {graph[source].shape for source in node.inputs}
    if len(shapes) != 1:
        raise TemplateError(f"{node.name}: adds branches of different shapes {sorted(shapes)}")
    marks = {mark for branch in branches for mark in _boundaries(branch)}
    for branch in branches:
        position = 0
        for producer, first, last in branch:
            inside = (mark for mark in marks if position < mark < position + last - first)
            cuts[producer].update(first + mark - position for mark in inside)
            position += last - first


def _boundaries(branch: list[Run]) -> list[int]:
    position, marks = 0, []
    for _, first, last in branch:
        position += last - first
        marks.append(position)
    return marks


class _Finder:
    def __init__(self, graph: Graph, runs: dict[str, list[Run]], multiple: int) -> None:
        self.graph = graph
        self.multiple = multiple
        self.runs = runs
        self.parent: dict[Run, Run] = {}

    def channels(self) -> Channels:
        for node in self.graph.nodes:
            for run in self.runs[node.name]:
                self.parent.setdefault(run, run)
            if node.op == "add":
                first, *others = (self.runs[source] for source in node.inputs)
                for other in others:
                    for left, right in zip(first, other, strict=True):
                        self._tie(left, right)
        index: dict[Run, int] = {}
        for run in self.parent:
            index.setdefault(self._root(run), len(index))
        output = {
            node.name: Axis(tuple(index[self._root(run)] for run in self.runs[node.name]), self._repeat(node))
            for node in self.graph.nodes[:-1]
        }
        groups = tuple(self._group(number, root, output) for root, number in index.items())
        return Channels(groups, output)

    def _root(self, run: Run) -> Run:
        while self.parent[run] != run:
            run = self.parent[run]
        return run

    def _tie(self, left: Run, right: Run) -> None:
        a, b = self._root(left), self._root(right)
        order = list(self.parent)
        first, second = (a, b) if order.index(a) <= order.index(b) else (b, a)
        self.parent[second] = first

    def _repeat(self, node: Node) -> int:
        """Features a channel has on this node's output once it is flattened."""
        if len(node.shape) != 1:
            return 1
        channels = sum(last - first for _, first, last in self.runs[node.name])
        if node.op == "cat":
            repeats = {self._repeat(self.graph[source]) for source in node.inputs}
            if len(repeats) != 1:
                raise TemplateError(
                    f"{node.name}: concatenates flattened branches of different image sizes; "
                    "pool them to one size, or concatenate before flattening"
                )
        return node.shape[0] // channels

    def _group(self, number: int, root: Run, output: dict[str, Axis]) -> Group:
        members = [run for run in self.parent if self._root(run) == root]
        on_it = [node for node in self.graph.nodes[1:-1] if number in output[node.name].groups]
        quantum = 1
        for node in on_it:
            if node.op == "group_norm":
                quantum = math.lcm(quantum, self._norm_quantum(node))
        producer, first, last = root
        return Group(
            index=number,
            name=producer if first == 0 else f"{producer}:{first}",
            width=last - first,
            quantum=quantum,
            unit=math.lcm(quantum, self.multiple),
            fixed=any(run[0] == self.graph.nodes[0].name for run in members),
            silent=all(node.keeps_zero() for node in on_it),
            mixed=any(node.op == "lrn" for node in on_it),
            hidden=all(self.graph[run[0]].op == "linear" for run in members),
        )

    def _norm_quantum(self, node: Node) -> int:
        size = node.number("channels") // node.number("groups")
        for _, first, last in self.runs[node.name]:
            if (last - first) % size:
                raise TemplateError(
                    f"{node.name}: its groups of {size} channels straddle the border of two branches, "
                    f"{last - first} channels wide; groups must divide each branch"
                )
        return size
