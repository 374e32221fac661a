"""The network in training: the graph run over masked layers, with gates on the channels that it may grow."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn

from grown.nn import aside, axes, fusing, masks
from grown.nn.axes import Widths
from grown.nn.bank import Bank
from grown.nn.gate_log import GateLog
from grown.nn.graph import BANKED, NORMS, Graph, Node
from grown.nn.groups import Axis, Channels, Group
from grown.nn.initial import Initializer
from grown.nn.layers import Head, MaskedLayer, MaskSettings, widen_norm
from grown.nn.plain import CALLS, make_norm, make_plain

POOLS = ("max_pool", "adaptive_max_pool")


class GrowingNetwork(nn.Module):
    """One task's network at physical width.

    `gates` holds, for each group that may grow, one score per candidate (a unit of channels behind the `settled`
    ones). A closed channel is computed but read by nobody: its column is multiplied by zero wherever it is read.
    """

    def __init__(
        self,
        graph: Graph,
        channels: Channels,
        banks: dict[str, Bank],
        physical: Widths,
        widths: Widths,
        classes: int,
        settings: MaskSettings,
        initializer: Initializer,
        retrain: bool,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.channels = channels
        self.settings = settings
        self.settled = widths  # the widths in front of the candidates
        self.widths = widths
        self.banks = banks
        self.layers = nn.ModuleDict()
        self._key = {node.name: str(number) for number, node in enumerate(graph.nodes)}
        for node in graph.nodes[1:-1]:
            if node.op in BANKED:
                self.layers[self._key[node.name]] = self._masked_layer(node, physical, initializer, retrain)
            elif node.op in NORMS:
                self.layers[self._key[node.name]] = make_norm(node, channels.width(channels.output[node.name], widths))
            elif node.op not in CALLS:
                self.layers[self._key[node.name]] = make_plain(node)
        axis = self._reads(graph.head)
        self.head = Head(
            classes,
            channels.width(axis, widths),
            axis.repeat,
            bool(graph.head.attrs["bias"]),
            initializer.generator("head", 0),
        )
        self.gates = nn.ParameterDict()
        self.gate_log = GateLog(self)
        self._together = _together(graph)
        last_reader = {source: node.name for node in graph.nodes for source in node.inputs}
        self._plan = [
            (node, self._key[node.name], node.inputs, [s for s in set(node.inputs) if last_reader[s] == node.name])
            for node in graph.nodes[1:-1]
        ]

    def _masked_layer(self, node: Node, physical: Widths, initializer: Initializer, retrain: bool) -> MaskedLayer:
        bank = self.banks[node.name]
        rows, columns = bank.view(self.widths, physical)
        at = (rows[:, None], columns)
        owner = torch.zeros(bank.extent(self.widths), dtype=torch.int32)
        owner[at] = bank.owner
        kernels = initializer.kernels(node.name, bank.extent(self.widths), bank.kernel, 0)
        frozen = owner > 0
        kernels[at] = torch.where(_over(bank.owner > 0, bank.kernel), bank.weight, kernels[at])
        normed = all(other.op == "batch_norm" for other in self.graph.nodes if node.name in other.inputs)
        return MaskedLayer(node, kernels, frozen, ~frozen & retrain, self.settings, normed=normed)

    def _reads(self, node: Node) -> Axis:
        return self.channels.output[node.inputs[0]]

    def layer(self, name: str) -> Any:
        """The module that runs a node."""
        return self.layers[self._key[name]]

    def masked(self) -> dict[str, MaskedLayer]:
        """The layers with kernels, by name."""
        return {node.name: cast(MaskedLayer, self.layer(node.name)) for node in self.graph.banked()}

    def forward(self, x: Tensor) -> Tensor:
        gates = self._layer_gates()
        values = {self.graph.nodes[0].name: x}
        done: dict[str, str] = {}  # what ran together with a norm, and where its value is
        for node, key, inputs, finished in self._plan:
            if node.name in done:
                values[node.name] = values[done[node.name]]
            elif node.op in BANKED:
                values[node.name] = self.layers[key](values[inputs[0]], gates.get(node.name))
            elif node.op == "add":
                values[node.name] = reduce(operator.add, [values[source] for source in inputs])
            elif node.op == "cat":
                values[node.name] = torch.cat([values[source] for source in inputs], dim=1)
            elif node.op == "mean":
                keep = bool(node.attrs["keepdim"])
                values[node.name] = values[inputs[0]].mean((2, 3), keepdim=keep)
            elif node.op == "lrn":
                values[node.name] = fusing.lrn(values[inputs[0]], self.layers[key], gates.get(node.name))
            elif node.name in self._together:
                behind = self._together[node.name]
                added = None if behind.other is None else values[behind.other]
                values[node.name] = fusing.norm_relu(
                    values[inputs[0]], self.layers[key], added, relu=behind.relu is not None
                )
                if behind.relu is not None:
                    done[behind.relu] = behind.add or node.name
                if behind.add is not None:
                    done[behind.add] = node.name
            elif node.op in POOLS:
                values[node.name] = fusing.max_pool(values[inputs[0]], self.layers[key])
            else:
                values[node.name] = self.layers[key](values[inputs[0]])
            for source in finished:
                del values[source]
        head = self.graph.head
        logits: Tensor = self.head(values[head.inputs[0]], gates.get(head.name))
        return logits

    # --- gates on candidate channels -------------------------------------------------------------------------------

    def _layer_gates(self) -> dict[str, Tensor]:
        """For each layer that a group with candidates goes through, a gate (0 or 1) per channel."""
        opening = self.opening()
        gates = {}
        for node in (*self.graph.nodes[1:-1], self.graph.head) if opening else ():
            if (axis := self._gated_axis(node)) is not None and any(group in opening for group in axis.groups):
                gates[node.name] = self._gate(axis, opening)
        if gates:
            aside.follow(*gates.values())
        return gates

    def _gated_axis(self, node: Node) -> Axis | None:
        """The channels that a node needs to know open ones of: what kernels read, what a local norm sums over."""
        if node.op == "lrn":
            return self.channels.output[node.name]
        reads = node is self.graph.head or (node.op in BANKED and not node.attrs.get("depthwise"))
        return self._reads(node) if reads else None

    def opening(self) -> dict[int, Tensor]:
        """For each group with candidates, a gate (0 or 1) per channel; settled channels are always open.

        All groups together, since each kernel that a GPU starts costs as much as the little that it has to do here.
        """
        if not self.gates:
            return {}
        groups = [self.channels.groups[int(name)] for name in self.gates]
        always = self.head.weight.new_ones(max(self.settled[group.index] for group in groups))
        parts: list[Tensor] = []
        for group, drawn in zip(groups, self._over_units(self._drawn(), groups), strict=True):
            parts += [always[: self.settled[group.index]], drawn]
        if self.training:
            self.gate_log.note()
        each = torch.split(torch.cat(parts), [self.widths[group.index] for group in groups])
        return {group.index: gate for group, gate in zip(groups, each, strict=True)}

    def _over_units(self, drawn: Tensor, groups: list[Group]) -> Sequence[Tensor]:
        """For each group what was drawn for its candidates, for every channel of each."""
        if len({group.unit for group in groups}) > 1:
            each = zip(self.by_group(drawn), groups, strict=True)
            return [gates.repeat_interleave(group.unit) for gates, group in each]
        unit = groups[0].unit
        counts = [len(scores) * unit for scores in self.gates.values()]
        return torch.split(drawn if unit == 1 else drawn.repeat_interleave(unit), counts)

    def gate_scores(self) -> Tensor:
        """The scores of all candidates, group by group."""
        return torch.cat(list(self.gates.values()))

    def by_group(self, values: Tensor) -> tuple[Tensor, ...]:
        """What there is for each candidate, in the order of `gate_scores`, for each group with candidates."""
        return torch.split(values, [len(scores) for scores in self.gates.values()])

    def _drawn(self) -> Tensor:
        """A gate (0 or 1) for each candidate, group by group."""
        if self.settings.kind == "gumbel":
            return masks.gumbel_mask(self.gate_scores(), self.settings.noise, self.training)
        return masks.hard_mask(self.gate_scores())

    def _gate(self, axis: Axis, opening: dict[int, Tensor]) -> Tensor:
        if len(axis.groups) == 1:
            return opening[axis.groups[0]]
        some = next(iter(opening.values()))
        return torch.cat(
            [opening[group] if group in opening else some.new_ones(self.widths[group]) for group in axis.groups]
        )

    @torch.no_grad()
    def open_candidates(self) -> dict[int, Tensor]:
        """For each group with candidates, which of them are open now, without noise."""
        return {int(name): scores > 0 for name, scores in self.gates.items()}

    @torch.no_grad()
    def closed_channels(self) -> list[Tensor]:
        """For each group, which channels are closed candidates."""
        closed = []
        for group in self.channels.groups:
            flags = torch.zeros(self.widths[group.index], dtype=torch.bool)
            if str(group.index) in self.gates:
                shut = self.gates[str(group.index)].cpu() <= 0
                flags[self.settled[group.index] :] = shut.repeat_interleave(group.unit)
            closed.append(flags)
        return closed

    # --- growth ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def widen(self, widths: Widths, gate_start: float, initializer: Initializer, round_: int) -> None:
        """Append candidate channels up to these widths; their gates start at `gate_start`."""
        old, device = self.widths, self.head.weight.device
        for node in self.graph.nodes[1:-1]:
            rows = axes.prefix(self.channels.output[node.name], widths, old).to(device)
            if node.op in BANKED:
                bank = self.banks[node.name]
                _, columns = bank.view(widths, old)
                fresh = initializer.kernels(node.name, bank.extent(widths), bank.kernel, round_).to(device)
                self.layer(node.name).widen(rows, columns.to(device), fresh)
            elif node.op in NORMS:
                total = self.channels.width(self.channels.output[node.name], widths)
                self.layers[self._key[node.name]] = widen_norm(self.layer(node.name), rows, total)
        axis = self._reads(self.graph.head)
        columns = axes.prefix(axis, widths, old).to(device)
        self.head.widen(columns, self.channels.width(axis, widths), initializer.generator("head", round_))
        for group in self.channels.groups:
            added = (widths[group.index] - old[group.index]) // group.unit
            if added:
                name = str(group.index)
                present = self.gates[name] if name in self.gates else torch.empty(0, device=device)
                fresh_gates = torch.full((added,), gate_start, device=device)
                scores = torch.cat([present.detach(), fresh_gates])
                self.gates[name] = nn.Parameter(scores)
                self.gate_log.start(group.index, scores > 0)
        self.widths = widths


def _together(graph: Graph) -> dict[str, fusing.Behind]:
    """Batch norms, and what runs together with each."""

    def kind(node: Node) -> str:
        plain = node.op == "batch_norm" and node.attrs["dims"] == 2 and node.attrs["affine"]
        return "norm" if plain and node.attrs["momentum"] is not None else node.op

    return fusing.find(fusing.Part(node.name, kind(node), tuple(node.inputs)) for node in graph.nodes)


def _over(flags: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """Flags per kernel, to be broadcast over the kernels' weights."""
    return flags.view(*flags.shape, *([1] * len(kernel)))
