"""Positions of a task's channels on a bank's axis, whose segments grow one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from grown.nn.groups import Axis

Widths = tuple[int, ...]


def prefix(axis: Axis, physical: Widths, seen: Widths) -> Tensor:
    """Where the first `seen` channels of each segment stand on an axis of `physical` widths."""
    parts, start = [], 0
    for group in axis.groups:
        parts.append(torch.arange(start, start + seen[group]))
        start += physical[group]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def chosen(axis: Axis, physical: Widths, kept: list[Tensor]) -> Tensor:
    """Where the kept channels (positions within each group) stand on an axis of `physical` widths."""
    parts, start = [], 0
    for group in axis.groups:
        parts.append(kept[group] + start)
        start += physical[group]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def spread(axis: Axis, per_group: list[Tensor]) -> Tensor:
    """A value per channel of each group, laid out along the axis."""
    return torch.cat([per_group[group] for group in axis.groups])


def gather(axis: Axis, along: Tensor, widths: Widths, group: int, reduce: str) -> Tensor:
    """The part of a vector along the axis that belongs to one group; summed or or-ed over its segments."""
    start, total = 0, None
    for member in axis.groups:
        part = along[start : start + widths[member]]
        start += widths[member]
        if member == group:
            total = part.clone() if total is None else (total | part if reduce == "any" else total + part)
    if total is None:
        total = torch.zeros(widths[group], dtype=along.dtype)
    return total
