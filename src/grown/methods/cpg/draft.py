"""A task's network between two trainings, as data: it is made into a network that trains, and read back from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from grown.methods.cpg.layer import ElementLayer
from grown.methods.plain import plain_groups
from grown.nn import axes
from grown.nn.axes import Widths
from grown.nn.bank import as_stored
from grown.nn.graph import BANKED, NORMS, Graph
from grown.nn.groups import Channels
from grown.nn.plain import build, fill, start

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Draft:
    """By layer (out, in, *k): weights, which of them earlier tasks own, which are picked, which are the task's own."""

    widths: Widths
    values: Weights
    earlier: Weights
    picked: Weights  # among those of earlier tasks
    own: Weights  # trained, and not pruned
    rest: Weights  # norms, biases, head, by their names in a plain network

    def effective(self, name: str, kind: str) -> Tensor:
        """A layer's weights as its network has them, as a file of this format gives them back."""
        return as_stored(self.values[name], kind) * (self.own[name] | self.picked[name])

    def to(self, device: str) -> Draft:
        """The same on another device."""
        parts = (self.values, self.earlier, self.picked, self.own, self.rest)
        return Draft(self.widths, *({key: value.to(device) for key, value in part.items()} for part in parts))


def assemble(graph: Graph, channels: Channels, draft: Draft, *, picking: bool, start_at: float) -> fx.GraphModule:
    """A network that trains the task's own weights, and picks from those of earlier tasks or leaves the picks alone."""
    head = graph.head.name
    network = start(build(graph, channels, draft.widths, len(draft.rest[f"{head}.weight"])))
    for node in graph.banked():
        frozen = draft.earlier[node.name] if picking else draft.picked[node.name]
        values, own = draft.values[node.name], draft.own[node.name]
        network.set_submodule(node.name, ElementLayer(node, values, frozen, own, picking=picking, start=start_at))
    network.load_state_dict(draft.rest, strict=False)
    return network.to(next(iter(draft.rest.values())).device).train().requires_grad_(True)


def layers(network: nn.Module) -> dict[str, ElementLayer]:
    """A network's masked layers by name."""
    return {name: module for name, module in network.named_modules() if isinstance(module, ElementLayer)}


def groups_of(network: nn.Module) -> list[dict[str, Any]]:
    """Its parameters by kind, as a training takes them."""
    scores = [layer.scores for layer in layers(network).values() if layer.scores is not None]
    return [*plain_groups(network, scores), {"name": "scores", "params": scores}]


def read_back(network: nn.Module, draft: Draft, *, picking: bool) -> Draft:
    """The draft as a training left it; biases, norms and head are those of the network."""
    values, own, picked = {}, {}, {}
    for name, layer in layers(network).items():
        trained, own[name] = layer.own()
        values[name] = torch.where(draft.earlier[name], draft.values[name], trained)
        picked[name] = layer.picks() & draft.earlier[name] if picking else draft.picked[name]
    state = network.state_dict()
    rest = {key: state[key].detach().clone() for key in draft.rest}
    return replace(draft, values=values, own=own, picked=picked, rest=rest)


def plain_network(graph: Graph, channels: Channels, draft: Draft, kind: str) -> fx.GraphModule:
    """The draft as a plain network, on the device where it lies."""
    weights = {}
    for node in graph.banked():
        weight = draft.effective(node.name, kind)
        weights[f"{node.name}.weight"] = weight.flatten(1) if node.op == "linear" else weight
    head = draft.rest[f"{graph.head.name}.weight"]
    return fill(build(graph, channels, draft.widths, len(head)), {**draft.rest, **weights}, head.device)


def inherit(graph: Graph, channels: Channels, rest: Weights, widths: Widths, old: Weights, seen: Widths) -> Weights:
    """Norms and biases as an earlier, narrower task has them; what it does not have, and the head, stay as they are."""
    taken = {key: value.clone() for key, value in rest.items()}
    for node in graph.nodes:
        if node.op in (*BANKED, *NORMS):
            places = axes.prefix(channels.output[node.name], widths, seen)
            for key in (key for key in old if key.rpartition(".")[0] == node.name):
                taken[key][places] = old[key]
    return taken
