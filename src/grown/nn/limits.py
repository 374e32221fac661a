"""Bounds on what a stranger's graph can make this library do, before it is done."""

from __future__ import annotations

import math
from typing import Any

from grown.errors import FileError, TemplateError
from grown.nn.axes import Widths
from grown.nn.graph import BANKED, Graph, Node
from grown.nn.groups import Channels, _align, _layouts, _produces

SEGMENTS = 256  # of one axis: a concatenation of so many branches
SEGMENTS_IN_ALL = 16_384
ROUNDS = 8  # of cutting branches finer until they meet
EXPANSION = 100  # times its tensors' bytes that a model may take in memory: what is free takes no place in a file
SPARE = 2**20  # bytes on top of that


def check_branches(graph: Graph) -> None:
    """Refuse branches that are joined so often, or so much across each other, that sorting them out takes long."""
    segments: dict[str, int] = {}
    for node in graph.nodes:
        joined = sum(segments[name] for name in node.inputs) if node.op == "cat" else 0
        segments[node.name] = joined or (1 if _produces(node) else segments[node.inputs[0]])
        if segments[node.name] > SEGMENTS or sum(segments.values()) > SEGMENTS_IN_ALL:
            raise TemplateError(f"{node.name}: more than {SEGMENTS} branches come together here")
    additions = [node for node in graph.nodes if node.op == "add"]
    cuts = {node.name: {0, node.shape[0]} for node in graph.nodes if _produces(node)}
    for _ in range(ROUNDS):
        layouts = _layouts(graph, cuts)
        if max(len(runs) for runs in layouts.values()) > SEGMENTS:
            raise TemplateError(f"its branches are joined in more than {SEGMENTS} pieces")
        before = sum(len(marks) for marks in cuts.values())
        for node in additions:
            _align(graph, node, [layouts[source] for source in node.inputs], cuts)
        if sum(len(marks) for marks in cuts.values()) == before:
            return
    raise TemplateError("its branches are joined across each other too often")


def kernel_counts(graph: Graph, channels: Channels, widths: Widths) -> list[tuple[int, int]]:
    """For each bank at these widths, its kernels and the weights in one; nothing is allocated."""
    counts = []
    for node in graph.banked():
        reads = channels.output[node.inputs[0]]
        sizes: Any = node.attrs["kernel"] if node.op == "conv" else [reads.repeat]
        rows = channels.width(channels.output[node.name], widths)
        columns = 1 if node.attrs.get("depthwise") else channels.width(reads, widths)
        counts.append((rows * columns, math.prod(sizes)))
    return counts


def check_memory(needed: int, stored: int) -> None:
    """Refuse what would take out of all proportion more memory than its file has bytes."""
    if needed > EXPANSION * stored + SPARE:
        raise FileError(
            f"it would take {needed:,} bytes of memory for {stored:,} bytes of tensors; "
            f"at most {EXPANSION} times as many are granted"
        )


def work(graph: Graph, channels: Channels, widths: Widths) -> tuple[int, int]:
    """For one image through a network of these widths: elements of the largest piece of memory, and operations."""
    largest, operations = 0, 0
    for node in graph.nodes[:-1]:
        axis = channels.output[node.name]
        size = channels.width(axis, widths) * axis.repeat * math.prod(node.shape[1:])
        window, reads = _window(node), size
        if node.op in BANKED and not node.attrs.get("depthwise"):
            before = channels.output[node.inputs[0]]
            inputs = channels.width(before, widths) * before.repeat
            window, reads = window * inputs, window * inputs * math.prod(node.shape[1:])  # a column per position
        largest = max(largest, size, reads)
        operations += size * window
    return largest, operations


def _window(node: Node) -> int:
    """How many values of each channel one output value is made of."""
    if node.op == "lrn":
        return node.number("size")
    value: Any = node.attrs.get("kernel", 1)
    return math.prod(value) if isinstance(value, list) else value**2
