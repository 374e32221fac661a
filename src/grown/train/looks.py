"""How images are seen, whole batches on the device: a part of each, enlarged, in slightly other colours."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def jitter(images: Tensor, factors: Tensor) -> Tensor:
    """Images (n, h, w, c) of values 0 to 255, brightness, contrast and saturation times their factors (n, 3)."""
    brightness, contrast, saturation = factors[:, :, None, None, None].unbind(1)
    x = (images.float() * brightness).clamp(0, 255)
    middle = _luma(x).mean((1, 2), keepdim=True)
    x = (middle + (x - middle) * contrast).clamp(0, 255)
    grey = _luma(x)
    return (grey + (x - grey) * saturation).clamp(0, 255)


def _luma(x: Tensor) -> Tensor:
    """How bright colours look (n, h, w, 1)."""
    if x.shape[3] != 3:
        return x.mean(3, keepdim=True)
    return 0.299 * x[..., :1] + 0.587 * x[..., 1:2] + 0.114 * x[..., 2:]


def zoom(images: Tensor, window: Tensor, flip: Tensor | None) -> Tensor:
    """Images (n, h, w, c): of each its window (top, left, height, width, as shares), enlarged, as floats.

    A pixel between others is blended of four. Windows lie within the image, so that only its border is repeated.
    """
    top, left, height, width = window.unbind(1)
    rows = _centres(images.shape[1], window)
    columns = _centres(images.shape[2], window)
    if flip is not None:
        columns = torch.where(flip[:, None], 1 - columns, columns)
    rows = (top[:, None] + rows * height[:, None]) * 2 - 1  # (n, h), from -1 to 1 as grid_sample counts
    columns = (left[:, None] + columns * width[:, None]) * 2 - 1
    x = images.permute(0, 3, 1, 2).float()
    shape = (-1, *x.shape[2:])
    grid = torch.stack([columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)], 3)  # (n, h, w, 2)
    found = F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return found.permute(0, 2, 3, 1)


def _centres(count: int, like: Tensor) -> Tensor:
    """Where the pixels' centres are, as shares of the side (1, count)."""
    return ((torch.arange(count, device=like.device) + 0.5) / count)[None]


def draw_windows(shape: tuple[int, int], least: float, generator: torch.Generator) -> Tensor:
    """Windows (..., 4) of at least this share of the area, up to a third longer than wide or wider than long."""
    area = least + (1 - least) * torch.rand(shape, generator=generator)
    stretch = ((torch.rand(shape, generator=generator) * 2 - 1) * math.log(4 / 3)).exp()
    size = torch.stack([(area / stretch).sqrt(), (area * stretch).sqrt()], -1).clamp_max(1.0)
    corner = torch.rand((*shape, 2), generator=generator) * (1 - size)
    return torch.cat([corner, size], -1)
