"""What to do when a device's memory does not suffice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grown.config import Recipe
from grown.errors import DeviceError


@contextmanager
def explained(recipe: Recipe, device: torch.device | str, lanes: int = 1) -> Iterator[None]:
    """Say which setting to lower, where the device runs out of memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        lower = [f"the batch (--set batch={max(1, recipe.batch // 2)} instead of {recipe.batch})"]
        if lanes > 1:
            lower.append(f"the trainings side by side (--set lanes=1 instead of {lanes})")
        lower.append("the network (--width, or the settings seed_size and max_size)")
        raise DeviceError(f"device {str(device)!r} is out of memory; lower {', or '.join(lower)}") from error
