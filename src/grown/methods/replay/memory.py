"""Images that are kept of earlier tasks: as many of each class, within stated bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from grown.data.part import Part
from grown.errors import ConfigError

LABEL = torch.int16


def bytes_of(part: Part) -> int:
    """What one image takes with its label."""
    return part.images[0].numel() * part.images.element_size() + LABEL.itemsize


def places(stated: int | None, usual: int, one_each: int) -> int:
    """How many images of each class there is room for, where one of each takes so many bytes."""
    if stated is None:
        return max(1, usual // one_each)
    if stated < one_each:
        raise ConfigError(
            f"memory_bytes must have room for an image of each class, {one_each:,} bytes by now, but is {stated:,}"
        )
    return stated // one_each


def cut(part: Part, places: int) -> Part:
    """The first so many images of each class, in their order."""
    kept = [(part.labels == label).nonzero().flatten()[:places] for label in range(int(part.labels.max()) + 1)]
    return part.take(torch.cat(kept).sort().values)


def repeated(part: Part, count: int) -> Part:
    """The part over and over, up to this many images."""
    which: Tensor = torch.arange(count) % len(part)
    return part.take(which)
