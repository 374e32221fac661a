"""Many small tensors as one vector, in a known order: a file with a thousand names would be mostly names."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from grown.errors import FileError


def flatten(values: Mapping[str, Tensor], keys: Mapping[str, torch.Size]) -> Tensor:
    """These values behind each other."""
    parts = [values[key].flatten().float() for key in keys]
    return torch.cat(parts) if parts else torch.zeros(0)


def split(name: str, flat: Tensor, keys: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """What `flatten` put together, each in memory of its own."""
    lengths = [math.prod(shape) for shape in keys.values()]
    if flat.ndim != 1 or flat.dtype != torch.float32 or flat.numel() != sum(lengths):
        raise FileError(f"{name} holds {list(flat.shape)} {flat.dtype}, but its network needs {sum(lengths)} floats")
    pieces = torch.split(flat, lengths)
    return {key: piece.clone().view(shape) for (key, shape), piece in zip(keys.items(), pieces, strict=True)}
