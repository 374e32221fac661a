"""One task's network as plain PyTorch: physically narrow, with no type of this library inside."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from grown.nn.axes import Widths
from grown.nn.graph import BANKED, NORMS, Graph, Node
from grown.nn.groups import Channels
from grown.nn.spelling import BUILDERS

CALLS = ("add", "cat", "mean")  # what a function does, and no module
NORM_TYPES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)


def make_plain(node: Node) -> nn.Module:
    """The module of an operation without weights."""
    return BUILDERS[node.op](node.attrs)


def make_norm(node: Node, channels: int) -> nn.Module:
    """A norm of this many channels, as PyTorch starts it."""
    attrs: dict[str, Any] = node.attrs
    if node.op == "group_norm":
        size = attrs["channels"] // attrs["groups"]
        return nn.GroupNorm(channels // size, channels, attrs["eps"], attrs["affine"])
    kind = nn.BatchNorm1d if attrs["dims"] == 1 else nn.BatchNorm2d
    return kind(channels, attrs["eps"], attrs["momentum"], attrs["affine"])


def build(graph: Graph, channels: Channels, widths: Widths, classes: int) -> fx.GraphModule:
    """A plain network of these widths, its weights not yet filled in; names are the template's."""
    modules: dict[str, nn.Module] = {}
    program = fx.Graph()
    values = {graph.nodes[0].name: program.placeholder("x")}
    for node in graph.nodes[1:]:
        inputs = [values[source] for source in node.inputs]
        values[node.name] = run_node(program, node, inputs, node.name)
        if node.op not in CALLS:
            with torch.device("meta"):  # nothing is drawn, here or from the process's random numbers
                modules[node.name] = make_module(node, channels, widths, classes)
    program.output(values[graph.head.name])
    return fx.GraphModule(modules, program, class_name="TaskNetwork")


def run_node(program: fx.Graph, node: Node, inputs: list[fx.Node], name: str) -> fx.Node:
    """Append an operation to a program; one that needs a module calls that of this name."""
    if node.op == "add":
        total = inputs[0]
        for other in inputs[1:]:
            total = program.call_function(operator.add, (total, other))
        return total
    if node.op == "cat":
        return program.call_function(torch.cat, (inputs,), {"dim": 1})
    if node.op == "mean":
        keep: dict[str, Any] = {"keepdim": bool(node.attrs["keepdim"])}
        return program.call_function(torch.mean, (inputs[0], (2, 3)), keep)
    return program.call_module(name, (inputs[0],))


def allocate(network: nn.Module, device: str | torch.device) -> None:
    """Memory for a network that was made without; `Module.to_empty` would load a symbolic algebra system for it."""
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            module.register_parameter(name, nn.Parameter(empty, parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def start(network: fx.GraphModule) -> fx.GraphModule:
    """Give a built network memory: norms as PyTorch starts them, all else zero."""
    allocate(network, "cpu")
    for module in network.modules():
        if isinstance(module, NORM_TYPES):
            module.reset_parameters()
        else:
            for parameter in module.parameters(recurse=False):
                torch.nn.init.zeros_(parameter)
    return network


def fill(network: fx.GraphModule, state: dict[str, Tensor], device: str | torch.device = "cpu") -> fx.GraphModule:
    """Load weights into freshly allocated memory, and set the network to evaluation."""
    allocate(network, device)
    for key, value in network.state_dict().items():
        if key.endswith("num_batches_tracked"):
            value.zero_()
            continue
        if state[key].shape != value.shape:
            raise ValueError(f"{key}: expected {list(value.shape)}, but got {list(state[key].shape)}")
        value.copy_(state[key])
    return network.eval().requires_grad_(False)


def simplest(network: fx.GraphModule) -> nn.Module:
    """The same layers in nested `nn.Sequential`s, where they are a chain: nothing but they runs then.

    A small network at batch 1 spends a tenth of its time on what `fx` does around them.
    """
    last, names = None, []
    for node in network.graph.nodes:
        if node.op not in ("placeholder", "call_module", "output") or (last is not None and node.args != (last,)):
            return network
        last = node
        names += [str(node.target)] if node.op == "call_module" else []
    chain, at = nn.Sequential(), [""]  # the container that is open, and those around it
    for name in names:
        *inside, leaf = name.split(".")
        place, within = chain, [""]
        for word in inside:
            within.append(f"{within[-1]}.{word}")
            if not hasattr(place, word):
                place.add_module(word, nn.Sequential())
            elif within[-1] not in at:
                return network  # a container that was left already: its layers are not neighbours
            place = place.get_submodule(word)  # type: ignore[assignment]
        if hasattr(nn.Sequential, leaf):
            return network
        place.add_module(leaf, network.get_submodule(name))
        at = within
    return chain.train(network.training)


def own_shapes(graph: Graph, channels: Channels, widths: Widths, classes: int) -> dict[str, torch.Size]:
    """What of a plain network is no kernel: biases, norms, head; names and shapes in the order of `build`'s state."""
    shapes: dict[str, torch.Size] = {}
    nodes = {node.name: node for node in graph.nodes if node.op in (*BANKED, *NORMS, "head")}
    for name in _nested(list(nodes)):
        node, attrs = nodes[name], nodes[name].attrs
        size = torch.Size([classes if node.op == "head" else channels.width(channels.output[name], widths)])
        if node.op == "head":
            reads = channels.output[node.inputs[0]]
            shapes[f"{name}.weight"] = torch.Size([classes, channels.width(reads, widths) * reads.repeat])
        if node.op in NORMS:
            affine = ("weight", "bias") if attrs["affine"] else ()
            running = ("running_mean", "running_var") if node.op == "batch_norm" else ()
            shapes |= {f"{name}.{key}": size for key in (*affine, *running)}
        elif attrs["bias"]:
            shapes[f"{name}.bias"] = size
    return shapes


def _nested(names: list[str]) -> list[str]:
    """Names as a module lists them to which fx attached them: less nested ones first, then what shares a parent."""
    tree: dict[str, Any] = {}
    for name in sorted(names, key=lambda name: name.count(".")):
        at = tree
        for word in name.split("."):
            at = at.setdefault(word, {})

    def walk(at: dict[str, Any], prefix: str) -> list[str]:
        below = [name for word, child in at.items() for name in walk(child, f"{prefix}.{word}" if prefix else word)]
        return below if at else [prefix]

    return walk(tree, "")


def divide(graph: Graph, shapes: dict[str, torch.Size]) -> dict[str, dict[str, torch.Size]]:
    """The same, divided into "own" (norms and biases) and "head"."""
    head = f"{graph.head.name}."
    return {
        part: {key: shape for key, shape in shapes.items() if key.startswith(head) == (part == "head")}
        for part in ("own", "head")
    }


def make_module(node: Node, channels: Channels, widths: Widths, classes: int, times: int = 1) -> nn.Module:
    """The module of a node; a layer that mixes channels may read so many times as many."""
    attrs: dict[str, Any] = node.attrs
    if node.op in ("batch_norm", "group_norm"):
        return make_norm(node, channels.width(channels.output[node.name], widths))
    if node.op not in ("conv", "linear", "head"):
        return make_plain(node)
    reads = channels.output[node.inputs[0]]
    inputs = channels.width(reads, widths) * (1 if node.op == "conv" else reads.repeat) * times
    outputs = classes if node.op == "head" else channels.width(channels.output[node.name], widths)
    if node.op != "conv":
        return nn.Linear(inputs, outputs, bool(attrs["bias"]))
    return nn.Conv2d(
        inputs,
        outputs,
        tuple(attrs["kernel"]),
        tuple(attrs["stride"]),
        attrs["padding"] if isinstance(attrs["padding"], str) else tuple(attrs["padding"]),
        tuple(attrs["dilation"]),
        groups=outputs if attrs["depthwise"] else 1,
        bias=bool(attrs["bias"]),
        padding_mode=attrs["padding_mode"],
    )
