"""A plain network's norms, additions, ReLUs and pools, run by faster code while it trains."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import cast

from torch import Tensor, fx, nn

from grown.nn import fusing
from grown.nn.accelerate import fused

# What runs as one kernel without a neighbour.
ALONE: dict[str, Callable[..., Tensor]] = {"pool": fusing.max_pool, "lrn": fusing.lrn}


def fuse_alone(network: fx.GraphModule) -> None:
    """For good: pools and local response norm run faster for as long as their modules are in training mode."""
    network.graph = _fused(network, alone=True)


class Fusion:
    """Gives an `fx.GraphModule` another program over the same modules, and its own one back."""

    def __init__(self, network: nn.Module, *, on_cpu: bool = False) -> None:
        """On a CPU only what runs alone has anything faster than PyTorch's."""
        changes = isinstance(network, fx.GraphModule) and (on_cpu or fused() is not None)
        self._network = cast(fx.GraphModule, network) if changes else None
        if self._network is not None:
            self._before = self._network.graph
            self._network.graph = _fused(self._network, alone=on_cpu)

    def undo(self) -> None:
        """The network as it was."""
        if self._network is not None:
            self._network.graph = self._before
            self._network = None


def _fused(network: fx.GraphModule, *, alone: bool) -> fx.Graph:
    modules = dict(network.named_modules())
    program = fx.Graph()
    program.output(program.graph_copy(network.graph, {}))
    nodes = {node.name: node for node in program.nodes}
    kinds = {name: _kind(node, modules) for name, node in nodes.items()}
    if alone:
        kinds = {name: kind if kind in ALONE else "" for name, kind in kinds.items()}
    inputs = {name: tuple(source.name for source in node.all_input_nodes) for name, node in nodes.items()}
    together = fusing.find(fusing.Part(name, kinds[name], inputs[name]) for name in nodes)
    for name, kind in kinds.items():
        if name in together:
            behind = together[name]
            added = [nodes[behind.other]] if behind.other is not None else []
            replaced = [part for part in (name, behind.add, behind.relu) if part is not None]
            run = fusing.norm_relu if behind.relu is not None else _norm
            new = _insert(program, nodes[name], run, added)
        elif kind in ALONE:
            replaced = [name]
            new = _insert(program, nodes[name], ALONE[kind], [])
        else:
            continue
        nodes[replaced[-1]].replace_all_uses_with(new)
        for part in reversed(replaced):
            program.erase_node(nodes[part])
        nodes[replaced[-1]] = new  # a later addition may read it
    return program


def _norm(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """A batch norm without a ReLU."""
    return fusing.norm_relu(x, norm, relu=False)


def _insert(program: fx.Graph, node: fx.Node, run: Callable[..., Tensor], more: list[fx.Node]) -> fx.Node:
    """Before a node that calls a module, a call of this function with its input and that module."""
    with program.inserting_before(node):
        return program.call_function(run, (node.args[0], program.get_attr(str(node.target)), *more))


def _kind(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    if node.op == "call_function":
        return "add" if node.target is operator.add else ""
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    if isinstance(module, nn.BatchNorm2d) and module.affine and module.momentum is not None:
        return "norm"
    if isinstance(module, nn.MaxPool2d | nn.AdaptiveMaxPool2d):
        return "pool"
    return {nn.LocalResponseNorm: "lrn", nn.ReLU: "relu", nn.Identity: "identity"}.get(type(module), "")
