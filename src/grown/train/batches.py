"""A part of a task on the device, shuffled and augmented there, whole batches at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from grown import seeds
from grown.config import Recipe
from grown.data.task import Normalisation, Part


class Batches:
    """Endless epochs over one part; the same seed and purpose give the same batches."""

    def __init__(
        self, part: Part, normalise: Normalisation, recipe: Recipe, device: str, seed: int, *purpose: object
    ) -> None:
        self.part = part.to(device)
        self.normalise = normalise
        self.recipe = recipe
        self.size = min(recipe.batch, len(part))
        self.steps = max(1, len(part) // self.size)
        self._draw = seeds.generator(seed, "batches", *purpose)

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the part in a new order; what does not fill a batch waits for a later epoch."""
        order = torch.randperm(len(self.part), generator=self._draw).to(self.part.labels.device)
        for step in range(self.steps):
            which = order[step * self.size : (step + 1) * self.size]
            images = self._augment(self.part.images[which])
            yield self.normalise(images), self.part.labels[which]

    def _augment(self, images: Tensor) -> Tensor:
        if images.ndim != 4:
            return images
        if self.recipe.crop:
            images = self._crop(images, self.recipe.crop)
        if self.recipe.flip:
            turned = (torch.rand(len(images), generator=self._draw) < 0.5).to(images.device)
            images = torch.where(turned.view(-1, 1, 1, 1), images.flip(3), images)
        return images

    def _crop(self, images: Tensor, pad: int) -> Tensor:
        count, _, height, width = images.shape
        padded = F.pad(images, (pad, pad, pad, pad))
        shift = torch.randint(0, 2 * pad + 1, (2, count), generator=self._draw).to(images.device)
        rows = shift[0][:, None] + torch.arange(height, device=images.device)  # (n, h)
        columns = shift[1][:, None] + torch.arange(width, device=images.device)  # (n, w)
        every = torch.arange(count, device=images.device)
        # Advanced indices around a slice put the channel axis last.
        return padded[every[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
