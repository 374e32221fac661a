"""One bit a kernel, eight to a byte; and small whole numbers in as few bits as they need."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grown.errors import FileError


def pack(flags: Tensor) -> Tensor:
    """Booleans as bytes, the first in the lowest bit."""
    return torch.from_numpy(np.packbits(flags.flatten().numpy(), bitorder="little"))


def packed_length(count: int) -> int:
    """Bytes that `count` flags take."""
    return (count + 7) // 8


def unpack(packed: Tensor, count: int) -> Tensor:
    """The first `count` flags; the bytes must be just as many as those need."""
    if packed.dtype != torch.uint8 or packed.ndim != 1 or packed.numel() != packed_length(count):
        raise FileError(f"{count} bits need {packed_length(count)} bytes, but there are {packed.numel()}")
    if count % 8 and int(packed.flatten()[-1]) >> count % 8:
        raise FileError(f"{count} bits are followed by others that mean nothing")
    flags = np.unpackbits(packed.numpy(), count=count, bitorder="little").view(np.bool_)
    return torch.from_numpy(flags)


def pack_numbers(numbers: Tensor) -> Tensor:
    """Non-negative whole numbers as bit planes, lowest first: (planes, bytes)."""
    flat = numbers.flatten()
    highest = int(flat.max()) if flat.numel() else 0
    planes = [pack((flat >> bit) & 1 > 0) for bit in range(highest.bit_length())]
    length = packed_length(flat.numel())
    return torch.stack(planes) if planes else torch.zeros((0, length), dtype=torch.uint8)


def unpack_numbers(planes: Tensor, count: int) -> Tensor:
    """The numbers that `pack_numbers` wrote."""
    if planes.ndim != 2 or planes.shape[0] > 31 or planes.shape[1] != packed_length(count):
        raise FileError(
            f"{count} numbers are a table of at most 31 rows of {packed_length(count)} bytes, "
            f"but got {list(planes.shape)}"
        )
    if len(planes) and not bool(planes[-1].any()):
        raise FileError("the highest bit plane is empty")
    numbers = torch.zeros(count, dtype=torch.int32)
    for bit, plane in enumerate(planes):
        ones = unpack(plane.contiguous(), count).to(torch.int32)
        numbers |= ones.bitwise_left_shift_(bit)
    return numbers
