"""Which units a task uses, which are dead, which drifted, and what a network is after these were split."""

from __future__ import annotations

import torch
from torch import Tensor

from grown.methods.den.shape import Flags, Shape, along
from grown.methods.shared.training import Weights
from grown.nn.axes import Widths


def connected(shape: Shape, state: Weights, widths: Widths) -> dict[str, Tensor]:
    """By layer, the kernels that lead to the head's nonzero weights through nonzero ones (out, in).

    Channels that meet in an addition are one unit, so that a unit leads to all that make it.
    """
    banks = shape.banks
    present = {name: (kernels != 0).flatten(2).any(2) for name, kernels in shape.kernels(state).items()}
    used = [torch.zeros(width, dtype=torch.bool) for width in widths]
    for group, part in along(shape.head_axis, widths, (shape.head(state) != 0).any(2).any(0)):
        used[group] |= part
    while True:
        before = sum(int(flags.sum()) for flags in used)
        followed = {name: present[name] & shape.spread(banks[name], used)[0][:, None] for name in present}
        for name, flags in followed.items():
            columns = banks[name].columns
            for group, part in along(columns, widths, flags.any(0)) if columns else []:
                used[group] |= part
        if sum(int(flags.sum()) for flags in used) == before:
            return followed


def incoming(shape: Shape, kernels: Weights, widths: Widths) -> list[Tensor]:
    """For each group, the length of each unit's incoming kernels, all its producers' together."""
    parts = [[next(iter(kernels.values())).new_zeros(width)] for width in widths]
    for name, bank in shape.banks.items():
        for group, part in along(bank.rows, widths, torch.linalg.vector_norm(kernels[name].flatten(1), dim=1)):
            parts[group].append(part)
    return [torch.linalg.vector_norm(torch.stack(lengths), dim=0) for lengths in parts]


def read(shape: Shape, state: Weights, widths: Widths) -> Flags:
    """For each group, which units something reads with a weight other than zero."""
    found = [torch.zeros(width, dtype=torch.bool) for width in widths]
    axes = [(shape.head_axis, (shape.head(state) != 0).any(2).any(0))]
    for name, kernels in shape.kernels(state).items():
        columns = shape.banks[name].columns
        axes += [(columns, (kernels != 0).flatten(2).any(2).any(0))] if columns else []
    for axis, flags in axes:
        for group, part in along(axis, widths, flags):
            found[group] |= part
    return found


def alive(shape: Shape, state: Weights, widths: Widths, settled: Widths, least: float) -> list[Tensor]:
    """For each group, where the units stand that stay: settled ones, and new ones that are fed and read."""
    lengths, readers = incoming(shape, shape.kernels(state), widths), read(shape, state, widths)
    new = [torch.arange(width) >= before for width, before in zip(widths, settled, strict=True)]
    lively = shape.whole([flags & (n > least) & r for flags, n, r in zip(new, lengths, readers, strict=True)])
    return [(~fresh | keep).nonzero().flatten() for fresh, keep in zip(new, lively, strict=True)]


def drifted(shape: Shape, now: Weights, before: Weights, widths: Widths, most: float) -> Flags:
    """For each group, which units' incoming kernels are farther than that from where they were."""
    ours, theirs = shape.kernels(now), shape.kernels(before)
    lengths = incoming(shape, {name: ours[name] - theirs[name] for name in ours}, widths)
    return shape.whole([length > most for length in lengths])


def split(
    shape: Shape, now: Weights, before: Weights, widths: Widths, settled: Widths, units: Flags
) -> tuple[Weights, Widths]:
    """Give each of these units back what it was, and a copy behind it that is what it became.

    `before` has the settled channels alone. What is new reads copies instead of the units that they came from, so that
    what became of the network runs on beside what it was; settled units do not read copies yet.
    """
    sources = [torch.cat([torch.arange(len(flags)), flags.nonzero().flatten()]) for flags in units]
    wide = tuple(len(source) for source in sources)
    state = shape.gather(now, widths, sources)
    copy = [torch.arange(len(source)) >= width for source, width in zip(sources, widths, strict=True)]
    old = [torch.arange(len(source)) < width for source, width in zip(sources, settled, strict=True)]
    origin = [torch.cat([flags, torch.zeros(int(flags.sum()), dtype=torch.bool)]) for flags in units]
    kernels, was = shape.kernels(state), shape.kernels(before)
    for name, bank in shape.banks.items():
        old_rows, _ = shape.spread(bank, old)
        row_origin, column_origin = shape.spread(bank, origin)
        _, column_copy = shape.spread(bank, copy)
        kernels[name][~old_rows[:, None] & column_origin] = 0.0
        kernels[name][old_rows[:, None] & column_copy] = 0.0
        restored = torch.zeros_like(kernels[name])
        places, across = bank.view(wide, settled)
        restored[places[:, None], across] = was[name]
        kernels[name][row_origin] = restored[row_origin]
    head, origins = shape.head(state), torch.cat([origin[group] for group in shape.head_axis.groups])
    head[:, origins] = 0.0
    return state, wide
