"""A network in training as it would be committed now: idle channels silent, everything narrow and plain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grown.methods.grown.record import narrow_kernels
from grown.nn.axes import Widths
from grown.nn.graph import BANKED, NORMS
from grown.nn.network import GrowingNetwork
from grown.nn.structure import Structure
from grown.train.evaluate import Score


@dataclass(frozen=True)
class Settled:
    """What would be committed now: the plain network, what it is made of, and its held-out score."""

    network: nn.Module
    structure: Structure
    kernels: dict[str, Tensor]  # layer -> all kernels (out, in, *k), unmasked
    soft: dict[str, Tensor] | None
    start: Widths  # the widths in front of the candidates
    val: Score

    @property
    def grew(self) -> bool:
        """Whether channels were added."""
        return any(int(flags[w:].sum()) > 0 for flags, w in zip(self.structure.kept, self.start, strict=True))


@torch.no_grad()
def silence(network: GrowingNetwork, structure: Structure) -> None:
    """Zero the biases and norms of channels that nothing feeds, so that they say nothing until they are fed."""
    for node in network.graph.nodes[1:-1]:
        flags = _along(structure.unfed, network, node.name)
        if not bool(flags.any()):
            continue
        if node.op in BANKED:
            bias = network.layer(node.name).bias
            if bias is not None:
                bias[flags.to(bias.device)] = 0
        elif node.op in NORMS:
            for key, value in network.layer(node.name).state_dict().items():
                if key in ("bias", "running_mean"):
                    value[flags.to(value.device)] = 0
                elif key == "running_var":
                    value[flags.to(value.device)] = 1


@torch.no_grad()
def narrow_state(
    network: GrowingNetwork, structure: Structure, kernels: dict[str, Tensor], soft: dict[str, Tensor] | None
) -> dict[str, Tensor]:
    """The plain network's weights by name: only kept channels, only active kernels."""
    state = {}
    for node in network.graph.nodes[1:-1]:
        kept = _along(structure.kept, network, node.name)
        if node.op in NORMS:
            for key, value in network.layer(node.name).state_dict().items():
                state[f"{node.name}.{key}"] = value.cpu()[kept] if value.ndim else value.cpu()
        elif node.op in BANKED:
            state[f"{node.name}.weight"] = narrow_kernels(
                network.banks[node.name],
                kernels[node.name],
                structure.active[node.name],
                soft[node.name] if soft is not None else None,
                structure.widths,
                structure.kept,
                node.op,
            )
            bias = network.layer(node.name).bias
            if bias is not None:
                state[f"{node.name}.bias"] = bias.cpu()[kept]
    head = network.graph.head
    kept = _along(structure.kept, network, head.inputs[0])
    weight = network.head.weight.cpu()
    state[f"{head.name}.weight"] = weight.view(len(weight), -1, network.head.repeat)[:, kept].flatten(1)
    if network.head.bias is not None:
        state[f"{head.name}.bias"] = network.head.bias.cpu()
    return state


def _along(flags: list[Tensor], network: GrowingNetwork, name: str) -> Tensor:
    return torch.cat([flags[group] for group in network.channels.output[name].groups])
