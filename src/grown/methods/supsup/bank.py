"""Random kernels that a seed stands for, the same on every machine and in every release."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor


def signed_constants(seed: int, key: str, shape: torch.Size) -> Tensor:
    """A layer's kernels: Kaiming's deviation sqrt(2 / fan-in) throughout, each with a random sign.

    The signs are bits of SHAKE-256, which no library's random numbers are promised to be.
    """
    count, fan_in = math.prod(shape), math.prod(shape[1:])
    stream = hashlib.shake_256(f"grown/bank/{seed}/{key}".encode()).digest((count + 7) // 8)
    signs = np.unpackbits(np.frombuffer(stream, dtype=np.uint8), count=count, bitorder="little")
    size = np.float32(math.sqrt(2.0 / fan_in))
    return torch.from_numpy(np.where(signs, size, -size)).view(shape)
