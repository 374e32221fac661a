"""Images and their labels, in memory or fetched when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RESIDENT_BYTES = 2**31  # images of one part that take more than this are fetched when needed, and never all at once


@dataclass(frozen=True, eq=False)
class Part:
    """Images (n, channels, height, width), or features (n, f), as uint8 or float32, and their labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image."""
        return tuple(self.images.shape[1:])

    @property
    def resident(self) -> bool:
        """Whether the images are in memory; else they are fetched when needed."""
        return True

    def fetch(self, which: Tensor) -> Tensor:
        """These images."""
        return self.images[which]

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All images in their order, so many at a time."""
        yield from torch.split(self.images, size)

    def take(self, which: Tensor) -> Part:
        """Only these."""
        return Part(self.images[which], self.labels[which])

    def to(self, device: torch.device | str) -> Part:
        """The same on another device."""
        return Part(self.images.to(device), self.labels.to(device))


class Source(Protocol):
    """Images (n, channels, height, width) that are somewhere else: an array in a mapped file, or a Dataset's."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, which: NDArray[np.int64]) -> NDArray[Any]: ...


class Streamed(Part):
    """A part whose images are fetched from their source when they are needed."""

    def __init__(self, source: Source, labels: Tensor, rows: Tensor | None = None) -> None:
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "rows", torch.arange(len(labels)) if rows is None else rows)

    source: Source
    rows: Tensor  # which of the source's images

    @property
    def images(self) -> Tensor:
        """All of them in memory, for who needs them so."""
        return self.fetch(torch.arange(len(self)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image."""
        return tuple(self.source.shape[1:])

    @property
    def resident(self) -> bool:
        """They are not in memory."""
        return False

    def fetch(self, which: Tensor) -> Tensor:
        """These images, on the CPU."""
        return torch.from_numpy(self.source[self.rows[which.cpu()].numpy()])

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All images in their order, so many at a time."""
        for which in torch.split(torch.arange(len(self)), size):
            yield self.fetch(which)

    def take(self, which: Tensor) -> Part:
        """Only these."""
        return Streamed(self.source, self.labels[which], self.rows[which])

    def to(self, device: torch.device | str) -> Part:  # noqa: ARG002
        """The same: they go to a device when they are fetched."""
        return self


def part_of(images: NDArray[Any], labels: Tensor) -> Part:
    """A part of decoded images (n, channels, height, width); one in a mapped file stays there."""
    if isinstance(images, np.memmap):
        return Streamed(images, labels)
    return Part(torch.from_numpy(images), labels)
