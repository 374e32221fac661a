"""Which kernels and channels a task's network consists of, once everything idle is cut away."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grown.nn import axes
from grown.nn.axes import Widths
from grown.nn.bank import Bank
from grown.nn.graph import Graph
from grown.nn.groups import Channels


@dataclass(frozen=True)
class Structure:
    """A task's kernels and channels within a network of these widths."""

    widths: Widths
    active: dict[str, Tensor]  # layer -> kernels that are used (out, in)
    kept: list[Tensor]  # group -> channels that are kept (bool)
    unfed: list[Tensor]  # group -> channels cut because nothing feeds them (bool)

    def positions(self) -> list[Tensor]:
        """For each group, where its kept channels stand."""
        return [flags.nonzero().flatten() for flags in self.kept]

    def narrow(self) -> Widths:
        """The widths once everything else is cut."""
        return tuple(int(flags.sum()) for flags in self.kept)


def find_structure(
    graph: Graph,
    channels: Channels,
    banks: dict[str, Bank],
    widths: Widths,
    picked: dict[str, Tensor],
    closed: list[Tensor],
) -> Structure:
    """Cut closed candidates, and channels that nothing feeds or nobody reads where that is exact.

    A channel that nothing feeds is silent once its bias and norm are zero, if every activation behind it keeps zero.
    Local response norm mixes neighbours, so there a channel stays; group norm is cut in whole groups. A group keeps
    one quantum at least.
    """
    kept = [~flags for flags in closed]
    unfed = [torch.zeros_like(flags) for flags in closed]
    while True:
        active = {name: _used(banks[name], picked[name], kept) for name in picked}
        changed = False
        all_fed, all_read = _traffic(graph, channels, banks, widths, active)
        for group in channels.groups:
            if group.fixed or group.mixed:
                continue
            fed, read = all_fed[group.index], all_read[group.index]
            gone = ~kept[group.index]
            idle = _whole_quanta(gone | ~read, group.quantum)
            if group.silent:
                idle |= _whole_quanta(gone | ~fed, group.quantum)
            stay = kept[group.index] & ~idle
            if not bool(stay.any()):
                stay[: group.quantum] = True
            if not torch.equal(stay, kept[group.index]):
                changed = True
                unfed[group.index] |= kept[group.index] & ~stay & ~fed
                kept[group.index] = stay
        if not changed:
            unfed = [cut & ~stay for cut, stay in zip(unfed, kept, strict=True)]
            return Structure(widths, active, kept, unfed)


def _used(bank: Bank, picked: Tensor, kept: list[Tensor]) -> Tensor:
    used = picked & axes.spread(bank.rows, kept)[:, None]
    return used & axes.spread(bank.columns, kept) if bank.columns else used


def _traffic(
    graph: Graph, channels: Channels, banks: dict[str, Bank], widths: Widths, active: dict[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """For each group, which of its channels are fed by some kernel, and which are read by one."""
    head = channels.output[graph.head.inputs[0]]
    fed = [torch.zeros(width, dtype=torch.bool) for width in widths]
    read = [torch.full((width,), group in head.groups) for group, width in enumerate(widths)]
    for name, used in active.items():
        bank = banks[name]
        if bank.columns is None:
            continue  # a depthwise layer passes its channels on, it neither makes nor ends them
        for axis, along, flags in ((bank.rows, used.any(1), fed), (bank.columns, used.any(0), read)):
            for group, part in zip(axis.groups, torch.split(along, [widths[g] for g in axis.groups]), strict=True):
                flags[group] |= part
    return fed, read


def _whole_quanta(idle: Tensor, quantum: int) -> Tensor:
    if quantum == 1:
        return idle
    return idle.view(-1, quantum).all(1).repeat_interleave(quantum)
