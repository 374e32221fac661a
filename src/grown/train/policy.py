"""A strong augmentation for whole batches on the device: one random operation an image, of random strength.

After TrivialAugment (Müller, Hutter 2021), with its wide ranges; equalisation is left out.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

OPERATIONS = (
    "identity", "shear-x", "shear-y", "move-x", "move-y", "turn",
    "brightness", "colour", "contrast", "sharpness", "posterise", "solarise", "stretch",
)  # fmt: skip
GEOMETRIC = 6  # operations before this index move pixels


def draw(shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """An operation and a signed strength (-1 to 1) for each image."""
    operation = torch.randint(0, len(OPERATIONS), shape, generator=generator)
    return operation, torch.rand(shape, generator=generator) * 2 - 1


def apply(images: Tensor, operation: Tensor, strength: Tensor) -> Tensor:
    """Images (n, h, w, c) of values 0 to 255, each after its operation, as floats."""
    x = images.permute(0, 3, 1, 2).float()
    x = _move(x, operation, strength)
    return _recolour(x, operation, strength).clamp(0, 255).permute(0, 2, 3, 1)


def _is(operation: Tensor, name: str) -> Tensor:
    return operation == OPERATIONS.index(name)


def _move(x: Tensor, operation: Tensor, strength: Tensor) -> Tensor:
    """Shear up to 1, move up to 32 pixels or all of a small image, turn up to 135 degrees; black outside."""
    angle = strength * math.radians(135) * _is(operation, "turn")
    reach = min(1.0, 32 / x.shape[-1]) * 2 * 0.99
    matrix = torch.stack(
        [
            torch.stack([angle.cos(), strength * _is(operation, "shear-x") - angle.sin(),
                         strength * reach * _is(operation, "move-x")], 1),
            torch.stack([strength * _is(operation, "shear-y") + angle.sin(), angle.cos(),
                         strength * reach * _is(operation, "move-y")], 1),
        ],
        1,
    )  # fmt: skip
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    moved = F.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    still = (operation == 0) | (operation >= GEOMETRIC)
    return torch.where(still.view(-1, 1, 1, 1), x, moved)


def _recolour(x: Tensor, operation: Tensor, strength: Tensor) -> Tensor:
    def only(name: str, changed: Tensor) -> Tensor:
        """The change, for those images whose operation this is."""
        return torch.where(_is(operation, name).view(-1, 1, 1, 1), changed, x)

    factor = (1 + 0.99 * strength).view(-1, 1, 1, 1)
    grey = x.mean(1, keepdim=True)
    x = only("brightness", x * factor)
    x = only("colour", grey + (x - grey) * factor)
    x = only("contrast", grey.mean((2, 3), keepdim=True) + (x - grey.mean((2, 3), keepdim=True)) * factor)
    blurred = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    x = only("sharpness", blurred + (x - blurred) * factor)
    step = torch.exp2(torch.round(6 * strength.abs())).view(-1, 1, 1, 1)
    x = only("posterise", torch.floor(x / step) * step)
    x = only("solarise", torch.where(x >= 255 * (1 - strength.abs()).view(-1, 1, 1, 1), 255 - x, x))
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return only("stretch", (x - low) * 255 / (high - low).clamp_min(1.0))
