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
