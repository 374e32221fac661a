"""A network's structure as data: nodes from a closed list of operations, so that a file needs no code to load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grown.errors import TemplateError
from grown.nn import rules

Value = bool | int | float | str | None | list[Any]

# Operations that own kernels; each becomes a bank.
BANKED = ("conv", "linear")
NORMS = ("batch_norm", "group_norm")

# name -> attributes that a node of this operation carries, no more and no less
OPERATIONS: dict[str, tuple[str, ...]] = {
    "input": (),
    "conv": ("out", "in", "kernel", "stride", "padding", "dilation", "padding_mode", "bias", "depthwise"),
    "linear": ("out", "in", "bias"),
    "head": ("in", "bias"),
    "batch_norm": ("channels", "eps", "momentum", "affine", "dims"),
    "group_norm": ("channels", "groups", "eps", "affine"),
    "lrn": ("size", "alpha", "beta", "k"),
    "relu": (),
    "relu6": (),
    "leaky_relu": ("negative_slope",),
    "elu": ("alpha",),
    "celu": ("alpha",),
    "selu": (),
    "gelu": ("approximate",),
    "silu": (),
    "mish": (),
    "hardswish": (),
    "hardtanh": ("min_val", "max_val"),
    "hardsigmoid": (),
    "tanh": (),
    "sigmoid": (),
    "softplus": ("beta", "threshold"),
    "softsign": (),
    "identity": (),
    "dropout": ("p",),
    "dropout2d": ("p",),
    "max_pool": ("kernel", "stride", "padding", "dilation", "ceil_mode"),
    "avg_pool": ("kernel", "stride", "padding", "ceil_mode", "count_include_pad"),
    "adaptive_avg_pool": ("size",),
    "adaptive_max_pool": ("size",),
    "mean": ("keepdim",),
    "flatten": (),
    "add": (),
    "cat": (),
}

# Activations with f(0) != 0: a channel without kernels is not silent behind them.
NOISY_AT_ZERO = frozenset({"hardsigmoid", "sigmoid", "softplus"})
MERGES = ("add", "cat")
_WEIGHTED = frozenset({*BANKED, *NORMS, "head"})
MOST_NODES = 1024


@dataclass(frozen=True)
class Node:
    """One operation: its name in the template, its inputs' names, its attributes, its output's shape."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attrs: dict[str, Value]
    shape: tuple[int, ...]  # without the batch axis

    def number(self, key: str) -> int:
        """An attribute that is a whole number."""
        value = self.attrs[key]
        if not isinstance(value, int):
            raise TemplateError(f"{self.name}: {key} must be a whole number, but got {value!r}")
        return value

    def keeps_zero(self) -> bool:
        """Whether a channel that is zero before this operation is zero behind it."""
        if self.op == "hardtanh":
            low, high = self.attrs["min_val"], self.attrs["max_val"]
            return isinstance(low, int | float) and isinstance(high, int | float) and low <= 0 <= high
        return self.op not in NOISY_AT_ZERO

    def to_json(self) -> dict[str, Any]:
        """Plain data for the file's metadata."""
        return {
            "name": self.name,
            "op": self.op,
            "inputs": list(self.inputs),
            "attrs": self.attrs,
            "shape": list(self.shape),
        }


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they run; the first is the input, the last the head."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        _check(self.nodes)

    def __getitem__(self, name: str) -> Node:
        return self._by_name[name]

    @property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @property
    def head(self) -> Node:
        """The last linear layer, of which each task has its own."""
        return self.nodes[-1]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels first, without the batch axis."""
        return self.nodes[0].shape

    def banked(self) -> list[Node]:
        """The nodes that own kernels."""
        return [node for node in self.nodes if node.op in BANKED]

    def norms(self) -> list[Node]:
        """The nodes that normalise and so belong to each task alone."""
        return [node for node in self.nodes if node.op in NORMS]

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data for the file's metadata."""
        return [node.to_json() for node in self.nodes]

    @staticmethod
    def from_json(data: Any) -> Graph:
        """The graph that `to_json` wrote; anything outside the closed list is refused."""
        if not isinstance(data, list) or not 0 < len(data) <= MOST_NODES:
            raise TemplateError(f"a graph must be a list of 1 to {MOST_NODES} nodes")
        return Graph(tuple(_node_from_json(entry) for entry in data))


def _node_from_json(entry: Any) -> Node:
    if not isinstance(entry, dict) or set(entry) != {"name", "op", "inputs", "attrs", "shape"}:
        raise TemplateError(f"a graph's node is malformed: {str(entry)[:120]}")
    name, op, inputs, attrs, shape = (entry[key] for key in ("name", "op", "inputs", "attrs", "shape"))
    lists = isinstance(inputs, list) and isinstance(shape, list) and isinstance(attrs, dict)
    if not lists or not all(isinstance(text, str) for text in (name, op, *inputs)):
        raise TemplateError(f"a graph's node is malformed: {str(entry)[:120]}")
    return Node(name, op, tuple(inputs), attrs, tuple(shape))


def _check(nodes: tuple[Node, ...]) -> None:
    if not nodes or nodes[0].op != "input" or nodes[-1].op != "head":
        raise TemplateError("a graph starts with its input and ends with its head")
    if len(nodes) > MOST_NODES:
        raise TemplateError(f"a graph has at most {MOST_NODES} nodes, but this one has {len(nodes)}")
    seen: dict[str, Node] = {}
    for node in nodes:
        rules.check_name(node.name)
        if node.op not in OPERATIONS:
            raise TemplateError(f"{node.name}: unknown operation {node.op[:60]!r}")
        if set(node.attrs) != set(OPERATIONS[node.op]):
            raise TemplateError(f"{node.name}: {node.op} needs exactly {list(OPERATIONS[node.op])}")
        if node.name in seen or any(source not in seen for source in node.inputs):
            raise TemplateError(f"{node.name}: a node stands once, behind its inputs")
        arity = len(node.inputs)
        if arity != (0 if node.op == "input" else 1) and not (node.op in MERGES and arity >= 1):
            raise TemplateError(f"{node.name}: {node.op} takes one input, but got {arity}")
        rules.check_attributes(node.name, node.op, node.attrs)
        if not node.shape or not all(type(size) is int and size > 0 for size in node.shape):
            raise TemplateError(f"{node.name}: its shape is {str(node.shape)[:60]}")
        rules.check_shape(node.name, node.op, node.attrs, [seen[name].shape for name in node.inputs], node.shape)
        seen[node.name] = node
    for name in seen:
        if above := [prefix for prefix in _prefixes(name) if prefix in seen and seen[prefix].op in _WEIGHTED]:
            raise TemplateError(f"{name}: it stands inside the layer {above[0]}")
    if sum(node.op in ("head", "input") for node in nodes) != 2:
        raise TemplateError("a graph has one input and one head")


def _prefixes(name: str) -> list[str]:
    """What a name lies below, as `a.b.c` lies below `a` and `a.b`."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]
