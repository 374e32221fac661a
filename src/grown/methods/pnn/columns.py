"""Columns as plain networks: a task's own with all earlier ones, or one in training with the earlier ones frozen."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from grown.methods.pnn.layout import Layout
from grown.nn.plain import CALLS, allocate, fill, make_module, run_node
from grown.train.fuse import fuse_alone

Weights = dict[str, Tensor]
Names = Callable[[str], tuple[str, str]]  # a node's module, and its lateral's
Activations = Callable[[str], fx.Node]  # of earlier columns at a node
Columns = list[tuple[Weights, Weights]]  # of each: layers, norms and head by name; laterals by layer

STATELESS = (nn.LocalResponseNorm, nn.MaxPool2d, nn.AdaptiveMaxPool2d)
EARLIER, LATERAL = "+earlier", "+lateral"  # in a network in training; no module of a template can have these names


class _Assembly:
    """A program and its modules, column by column."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.program = fx.Graph()
        self.x = self.program.placeholder("x")
        self.modules: dict[str, nn.Module] = {}

    def column(self, number: int, classes: int | None, names: Names, earlier: Activations) -> dict[str, fx.Node]:
        """Append a column, without classes only what later ones read; returns its activations."""
        layout = self.layout
        values = {layout.graph.nodes[0].name: self.x}
        for node in layout.graph.nodes[1:]:
            if classes is None and node.name not in layout.needed:
                continue
            inputs = [values[source] for source in node.inputs]
            name, aside = names(node.name)
            times = layout.times(node, number)
            if times > 1:
                self.modules[aside] = lateral(layout, node.name, number)
                read = self.program.call_module(aside, (earlier(layout.places[node.name]),))
                inputs = [self.program.call_function(torch.cat, ([inputs[0], read],), {"dim": 1})]
            values[node.name] = run_node(self.program, node, inputs, name)
            if node.op not in CALLS:
                with torch.device("meta"):
                    self.modules[name] = make_module(node, layout.channels, layout.widths, classes or 1, times)
        return values

    def earlier_columns(self, count: int) -> Activations:
        """Append the first columns; returns what joins their activations at a node."""
        before: list[dict[str, fx.Node]] = []
        earlier = self._joined([])
        for number in range(1, count + 1):
            before.append(self.column(number, None, names_in(number), earlier))
            earlier = self._joined(list(before))
        return earlier

    def _joined(self, before: list[dict[str, fx.Node]]) -> Activations:
        found: dict[str, fx.Node] = {}

        def activations(source: str) -> fx.Node:
            if source not in found:
                parts = [values[source] for values in before]
                one = len(parts) == 1
                found[source] = parts[0] if one else self.program.call_function(torch.cat, (parts,), {"dim": 1})
            return found[source]

        return activations

    def module(self, result: Any) -> fx.GraphModule:
        """All of it, with this result."""
        self.program.output(result)
        return fx.GraphModule(self.modules, self.program, class_name="TaskNetwork")


def names_in(number: int) -> Names:
    """Under which names a node and its lateral stand in a network of several columns."""
    return lambda node: (f"column{number}.{node}", f"lateral{number}.{node}")


def lateral(layout: Layout, name: str, number: int) -> nn.Sequential:
    """An adapter of earlier activations: a 1x1 layer over channels, and ReLU."""
    width, total = layout.lateral_shapes(number)[name]
    source = layout.graph[layout.places[name]]
    repeat = layout.channels.output[source.name].repeat
    with torch.device("meta"):
        if len(source.shape) == 3:
            return nn.Sequential(nn.Conv2d(total, width, 1, bias=False), nn.ReLU())
        if repeat == 1:
            return nn.Sequential(nn.Linear(total, width, bias=False), nn.ReLU())
        one = nn.Conv1d(total, width, 1, bias=False)  # over the channels, at each place of the flattened image
        return nn.Sequential(nn.Unflatten(1, (total, repeat)), one, nn.ReLU(), nn.Flatten(1))


def task_network(layout: Layout, columns: Columns, classes: int) -> fx.GraphModule:
    """The last column's network, with all earlier columns in it."""
    assembly = _Assembly(layout)
    earlier = assembly.earlier_columns(len(columns) - 1)
    values = assembly.column(len(columns), classes, names_in(len(columns)), earlier)
    return _filled(assembly.module(values[layout.graph.head.name]), columns)


def _filled(network: fx.GraphModule, columns: Columns) -> fx.GraphModule:
    state: Weights = {}
    wanted = {key: value.shape for key, value in network.state_dict().items()}
    for number, (weights, laterals) in enumerate(columns, start=1):
        state |= {f"column{number}.{key}": value for key, value in weights.items()}
        for name, value in laterals.items():
            for key in (f"lateral{number}.{name}.{place}.weight" for place in (0, 1)):
                if key in wanted:
                    state[key] = value.view(wanted[key])
    return fill(network, state)


class Frozen(nn.Module):
    """Earlier columns as they are: nothing in them trains, no norm that learns is ever in training."""

    def __init__(self, columns: fx.GraphModule) -> None:
        super().__init__()
        fuse_alone(columns)
        self._columns = (columns,)  # in a tuple: neither this module's parameters nor in its training mode
        self._half: tuple[fx.GraphModule, ...] = ()
        self.train()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            found: tuple[Tensor, ...] = self._for(x)(x)
        return found

    def _for(self, x: Tensor) -> fx.GraphModule:
        """In a step in half precision, what autocast would make of the weights in every step is made once."""
        if not torch.is_autocast_enabled(x.device.type):
            return self._columns[0]
        if not self._half:
            self._half = (lighter(self._columns[0], torch.get_autocast_dtype(x.device.type)),)
            self.train(self.training)
        return self._half[0]

    def train(self, mode: bool = True) -> Frozen:
        """In training, what has no parameters runs faster; an evaluation is to the bit what a task's network does."""
        super().train(mode)
        for network in (*self._columns, *self._half):
            for module in network.modules():
                if isinstance(module, STATELESS):
                    module.train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Frozen:
        """Go where the network goes."""
        self._half = ()
        self._columns[0]._apply(fn, recurse)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def lighter(network: fx.GraphModule, dtype: torch.dtype) -> fx.GraphModule:
    """A copy for steps in half precision: norms in the convolutions before them, weights in the precision of these."""
    network = copy.deepcopy(network).eval()
    modules = dict(network.named_modules())
    for node in list(network.graph.nodes):
        norm = modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(norm, nn.BatchNorm2d):
            continue
        (source,) = node.all_input_nodes
        layer = modules.get(str(source.target)) if source.op == "call_module" else None
        if isinstance(layer, nn.Conv2d) and len(source.users) == 1:
            network.set_submodule(str(source.target), fuse_conv_bn_eval(layer, norm))
            node.replace_all_uses_with(source)
            network.graph.erase_node(node)
    network.delete_all_unused_submodules()
    network.recompile()
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Conv1d | nn.Linear):
            layer.to(dtype)
    return network


def frozen(layout: Layout, columns: Columns) -> Frozen:
    """These columns' activations that the next one's laterals read, joined, in the order of `sources`."""
    assembly = _Assembly(layout)
    earlier = assembly.earlier_columns(len(columns))
    return Frozen(_filled(assembly.module(tuple(earlier(source) for source in sources(layout))), columns))


def sources(layout: Layout) -> list[str]:
    """The nodes that laterals read, each once."""
    return list(dict.fromkeys(layout.places.values()))


def column_in_training(layout: Layout, number: int, classes: int) -> fx.GraphModule:
    """One column by the template's own names; its laterals and the earlier columns are still to be put in."""
    assembly = _Assembly(layout)
    joined: dict[str, fx.Node] = {}
    if number > 1:
        assembly.modules[EARLIER] = nn.Identity()
        every = assembly.program.call_module(EARLIER, (assembly.x,))
        for place, source in enumerate(sources(layout)):
            joined[source] = assembly.program.call_function(operator.getitem, (every, place))
    values = assembly.column(number, classes, lambda node: (node, f"{LATERAL}.{node}"), joined.__getitem__)
    return assembly.module(values[layout.graph.head.name])


class Lateral(nn.Module):
    """A lateral in training: a learned scalar for each earlier column, then the 1x1 layer and ReLU."""

    def __init__(self, weight: Tensor, columns: int, scale: float, repeat: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)  # (own channels, channels of all earlier columns)
        self.scale = nn.Parameter(torch.full((columns,), scale))
        self.repeat = repeat

    def folded(self) -> Tensor:
        """The 1x1 layer with the scalars in it."""
        return self.weight * self.scale.repeat_interleave(self.weight.shape[1] // len(self.scale))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.folded()
        if x.ndim == 4:
            return F.conv2d(x, weight[:, :, None, None]).relu()
        if self.repeat == 1:
            return F.linear(x, weight).relu()
        return F.conv1d(x.view(len(x), -1, self.repeat), weight[:, :, None]).relu().flatten(1)


def settled(plain: nn.Sequential, weight: Tensor) -> nn.Sequential:
    """A plain lateral with this 1x1 layer."""
    allocate(plain, weight.device)
    (layer,) = plain.requires_grad_(False).parameters()
    layer.copy_(weight.view(layer.shape))
    return plain


def laterals_of(state: Mapping[str, Tensor]) -> Weights:
    """The 1x1 layers in the state of a trained column, by layer."""
    found = {key: value for key, value in state.items() if key.startswith(f"{LATERAL}.")}
    return {key.removeprefix(f"{LATERAL}.").rsplit(".", 2)[0]: value.flatten(1) for key, value in found.items()}
