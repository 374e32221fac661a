"""How a task's images become numbers around zero, measured on what trains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grown.data.part import Part

CHUNK = 250  # images that are fetched at a time


@dataclass(frozen=True)
class Normalisation:
    """(x - mean) / deviation per channel, in the images' own units."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Images or features as the network takes them."""
        mean, deviation = self.on(images.device, images.ndim)
        return (images.float() - mean) / deviation

    def on(self, device: torch.device, dimensions: int) -> tuple[Tensor, Tensor]:
        """Mean and deviation as tensors that meet images of so many dimensions."""
        shape = (1, -1) + (1,) * (dimensions - 2)
        mean, deviation = (torch.tensor(values, device=device).view(shape) for values in (self.mean, self.deviation))
        return mean, deviation


def measure(part: Part) -> Normalisation:
    """The mean and deviation of each channel; a constant channel is left at its scale."""
    first = part.fetch(torch.zeros(1, dtype=torch.int64))
    mean, deviation = (_of_bytes if first.ndim == 4 and first.dtype == torch.uint8 else _of_numbers)(part)
    deviation = torch.where(deviation < 1e-6, torch.ones_like(deviation), deviation)
    return Normalisation(tuple(mean.float().tolist()), tuple(deviation.float().tolist()))


def _of_bytes(part: Part) -> tuple[Tensor, Tensor]:
    """Of images: how often each value occurs says all, and bytes are counted sooner than turned into doubles."""
    counts = torch.zeros(part.shape[0], 256, dtype=torch.int64)
    for images in part.chunks(CHUNK):
        for channel, count in enumerate(counts):
            count += torch.bincount(images[:, channel].flatten(), minlength=256).cpu()
    values, pixels = torch.arange(256), len(part) * math.prod(part.shape[1:])
    totals = [(int((count * values).sum()), int((count * values.square()).sum())) for count in counts]
    mean = [total / pixels for total, _ in totals]
    deviation = [math.sqrt(squares * pixels - total**2) / pixels for total, squares in totals]  # whole numbers: exact
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(deviation, dtype=torch.float64)


def _of_numbers(part: Part) -> tuple[Tensor, Tensor]:
    """Of features, or of images in other units; those that are not in memory, a few at a time."""
    over = [0, *range(2, len(part.shape) + 1)]
    if part.resident:
        images = part.images.double()
        return images.mean(over), images.std(over, correction=0)
    total = squares = torch.zeros((), dtype=torch.float64)
    for images in part.chunks(CHUNK):
        values = images.double()
        total, squares = total + values.sum(over), squares + values.square().sum(over)
    count = len(part) * math.prod(part.shape[1:])
    mean = total / count
    return mean, (squares / count - mean.square()).clamp_min(0.0).sqrt()
