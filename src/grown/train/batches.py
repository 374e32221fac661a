"""A part of a task on the device as uint8, shuffled and augmented there, whole batches at a time.

A part that is too large to be in memory is fetched batch by batch instead, with the same result.

What an epoch does to each image is drawn beforehand, on the CPU, from the seed and the epoch's number alone: the same
on every device, and nothing to remember when a run is resumed. The device then only computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grown import seeds
from grown.config import Recipe
from grown.data.normalisation import Normalisation
from grown.data.part import Part
from grown.errors import ConfigError
from grown.nn.accelerate import channels_first
from grown.train import looks, policy, turns

EVALUATION_BATCH = 250  # fixed: another batch size may change the last bits
UNUSED = 10**6  # epochs from here on are not trained on
MIXING = ("partner", "mixed", "box", "blend")


@dataclass(frozen=True)
class Batch:
    """Inputs and labels; where a box came from other images, their labels and the box's share of the picture."""

    x: Tensor
    labels: Tensor
    others: Tensor | None = None
    share: Tensor | None = None


def steps_of(part: Part, recipe: Recipe) -> int:
    """Steps of an epoch over a part; what does not fill a batch is left for another epoch."""
    return max(1, len(part) // min(recipe.batch, len(part)))


class Batches:
    """Epochs over one part; the same seed and purpose give the same batches."""

    def __init__(
        self, part: Part, normalise: Normalisation, recipe: Recipe, device: str, seed: int, *purpose: object
    ) -> None:
        self.recipe = recipe
        self.device = torch.device(device)
        self.size = min(recipe.batch, len(part))
        self.steps = steps_of(part, recipe)
        self.count = len(part)
        self._seed = seeds.derive(seed, "batches", *purpose)
        self._labels = part.labels.to(self.device)
        self._is_image = len(part.shape) == 3
        self.resident = part.resident
        if self._is_image:
            self._height, self._width = part.shape[1:]
            self._rows = torch.arange(self._height, device=self.device)
            self._columns = torch.arange(self._width, device=self.device)
        if recipe.turns and not (self._is_image and self._height == self._width):
            raise ConfigError("rotation labels (turns) need square images")
        self._part = part
        self._images = self._laid_out(part.images) if self.resident else None
        self._mean = torch.tensor(normalise.mean, device=self.device)
        self._deviation = torch.tensor(normalise.deviation, device=self.device)
        self._plan: dict[str, Tensor] = {}

    def _laid_out(self, images: Tensor) -> Tensor:
        """On the device, padded for crops, channels last (n, h, w, c)."""
        images, pad = images.to(self.device), self.recipe.crop
        return F.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1).contiguous() if self._is_image else images

    def begin(self, epoch: int) -> None:
        """Draw what this epoch does; epochs count from 1."""
        drawn = self._draw(epoch)
        if self.device.type == "cuda":  # from pinned memory a copy does not wait for what the device is doing
            drawn = {name: values.contiguous().pin_memory() for name, values in drawn.items()}
        self._plan = {name: values.to(self.device, non_blocking=True) for name, values in drawn.items()}

    def _draw(self, epoch: int) -> dict[str, Tensor]:
        """For each step and image of the epoch: which it is, and what is done to it."""
        draw = seeds.generator(self._seed, epoch)
        recipe, shape = self.recipe, (self.steps, self.size)
        order = torch.randperm(self.count, generator=draw)[: self.steps * self.size]
        plan = {"order": order.view(shape)}
        if not self._is_image:
            return plan
        if recipe.crop:
            plan["shift"] = torch.randint(0, 2 * recipe.crop + 1, (*shape, 2), generator=draw)
        if recipe.flip:
            plan["flip"] = torch.rand(shape, generator=draw) < 0.5
        is_calm = recipe.calm > 0 and epoch > recipe.epochs * (1 - recipe.calm)
        if recipe.cutout and not is_calm:
            size = torch.tensor([self._height, self._width])
            plan["hole"] = (torch.rand((*shape, 2), generator=draw) * size).long()
        if recipe.policy == "trivial" and not is_calm:
            plan["operation"], strength = policy.draw(shape, draw)
            plan["strength"] = recipe.reach * strength
        if recipe.zoom:
            plan["window"] = looks.draw_windows(shape, recipe.zoom, draw)
        if recipe.colour and not is_calm:
            plan["colour"] = 1 + recipe.colour * (torch.rand((*shape, 3), generator=draw) * 2 - 1)
        if recipe.cutmix or recipe.mixup:
            plan |= self._draw_mixing(draw, mixing=epoch <= recipe.epochs * 0.9)
        return plan

    def _draw_mixing(self, draw: torch.Generator, mixing: bool) -> dict[str, Tensor]:
        """A partner for each image: some batches take a box of it, some blend with it, none in the last tenth."""
        steps, recipe = self.steps, self.recipe
        share = torch.rand(steps, generator=draw).sqrt()  # the box's side, as a share of the image's
        chosen = torch.rand(steps, generator=draw)
        boxed = (chosen < recipe.cutmix) & mixing
        blended = (chosen >= 1 - recipe.mixup) & mixing
        size = torch.tensor([self._height, self._width])
        half = (share[:, None] * size / 2).long() * boxed[:, None]
        centre = (torch.rand((steps, 2), generator=draw) * size).long()
        low, high = (centre - half).clamp_min(0), torch.minimum(centre + half, size)
        partner = torch.stack([torch.randperm(self.size, generator=draw) for _ in range(steps)])
        area = (high - low).prod(1) / (self._height * self._width)
        plan = {"partner": partner, "mixed": area}
        if recipe.cutmix:
            plan["box"] = torch.cat([low, high], 1)[:, None].expand(steps, self.size, 4)
        if recipe.mixup:
            blend = 0.5 * torch.rand(steps, generator=draw) * blended  # the partner's share, less than half
            plan["blend"], plan["mixed"] = blend[:, None].expand(steps, self.size), area + blend
        return plan

    def at(self, step: int) -> Batch:
        """The batch of one step of the epoch that was begun."""
        plan = {name: values[step] for name, values in self._plan.items()}
        return self._compute(plan)

    def whole(self) -> Batch:
        """All batches of the epoch that was begun, behind each other: a few large operations instead of many small."""
        plan = {name: values.flatten(0, 1) if name != "mixed" else values for name, values in self._plan.items()}
        if "partner" in plan:
            first = torch.arange(self.steps, device=self.device)[:, None] * self.size
            plan["partner"] = (self._plan["partner"] + first).flatten()
        return self._compute(plan)

    def _compute(self, plan: dict[str, Tensor]) -> Batch:
        which = plan["order"]
        labels = self._labels[which]
        images = self._images
        if images is None:
            images, which = self._laid_out(self._part.fetch(which)), torch.arange(len(which), device=self.device)
        if not self._is_image:
            return Batch((images[which].float() - self._mean) / self._deviation, labels)
        if "window" in plan:
            images = looks.zoom(images[which], plan["window"], plan.get("flip"))
        else:
            images = self._windows(images, which, plan)
        if "operation" in plan:
            images = policy.apply(images, plan["operation"], plan["strength"])
        if "colour" in plan:
            images = looks.jitter(images, plan["colour"])
        x = (images.float() - self._mean) / self._deviation  # (n, h, w, c)
        if "hole" in plan:
            x = x * self._outside(plan["hole"])
        others = share = None
        if "partner" in plan:
            partners = x[plan["partner"]]
            others, share = labels[plan["partner"]], plan["mixed"]
            if "box" in plan:
                x = torch.where(self._inside(plan["box"]), partners, x)
            if "blend" in plan:
                x = x + plan["blend"][:, None, None, None] * (partners - x)
        if self.recipe.turns:
            x, labels = turns.turned(x), turns.turned_labels(labels)
            others = None if others is None else turns.turned_labels(others)
        x = x.permute(0, 3, 1, 2)  # channels first in shape, last in memory, as a GPU wants them
        return Batch(channels_first(x), labels, others, share)

    def _windows(self, images: Tensor, which: Tensor, plan: dict[str, Tensor]) -> Tensor:
        """Cropped and flipped images (n, h, w, c), fetched in one go."""
        rows, columns = self._rows[None, :], self._columns[None, :]
        if "flip" in plan:
            columns = torch.where(plan["flip"][:, None], self._width - 1 - columns, columns)
        if "shift" in plan:
            rows, columns = rows + plan["shift"][:, :1], columns + plan["shift"][:, 1:]
        return images[which[:, None, None], rows[:, :, None], columns[:, None, :]]

    def _outside(self, hole: Tensor) -> Tensor:
        half = self.recipe.cutout / 2
        near_row = (self._rows[None, :] - hole[:, :1] + 0.5).abs() < half
        near_column = (self._columns[None, :] - hole[:, 1:] + 0.5).abs() < half
        return ~(near_row[:, :, None] & near_column[:, None, :])[..., None]

    def _inside(self, box: Tensor) -> Tensor:
        rows = (self._rows >= box[:, :1]) & (self._rows < box[:, 2:3])
        columns = (self._columns >= box[:, 1:2]) & (self._columns < box[:, 3:])
        return (rows[:, :, None] & columns[:, None, :])[..., None]

    def inputs(self, epochs: int) -> Iterator[Tensor]:
        """Augmented inputs alone, for the statistics of norms: not mixed, from epochs that no training has."""
        for epoch in range(UNUSED, UNUSED + epochs):
            self.begin(epoch)
            total = self.steps * self.size * (turns.TURNS if self.recipe.turns else 1)
            left = total // EVALUATION_BATCH * EVALUATION_BATCH or total
            for piece in self._pieces():
                if left == 0:
                    break
                x = piece.x[:left]
                left -= len(x)
                yield from torch.split(x, EVALUATION_BATCH)  # of one size, which evaluation has too

    def _pieces(self) -> Iterator[Batch]:
        """All batches of an epoch that mixes nothing: together, or a few images at a time where they are fetched."""
        if self.resident:
            yield self.whole()
            return
        plan = {name: values.flatten(0, 1) for name, values in self._plan.items() if name not in MIXING}
        for start in range(0, self.steps * self.size, EVALUATION_BATCH):
            yield self._compute({name: values[start : start + EVALUATION_BATCH] for name, values in plan.items()})
