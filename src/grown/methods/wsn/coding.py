"""Masks in fewer bytes than a bit each, where their bits are not evenly 0 and 1: Huffman codes of their bytes.

The codes are those of DEFLATE (RFC 1951), which every standard library reads and writes.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from grown.errors import FileError

RAW = -15  # neither header nor checksum: the file has digests


def shorten(packed: Tensor) -> Tensor:
    """The bytes Huffman-coded, if that is shorter, otherwise as they are."""
    coder = zlib.compressobj(9, zlib.DEFLATED, RAW, 9, zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(packed.numpy().data) + coder.flush()
    if len(coded) >= len(packed):
        return packed
    return torch.from_numpy(np.frombuffer(bytearray(coded), dtype=np.uint8))


def restore(name: str, coded: Tensor, length: int) -> Tensor:
    """So many bytes again; never more memory than these take, whatever the codes say."""
    if len(coded) == length:
        return coded
    decoder = zlib.decompressobj(RAW)
    try:
        found = decoder.decompress(coded.numpy().tobytes(), length + 1)
    except zlib.error as error:
        raise FileError(f"{name} is not a mask: its codes cannot be read") from error
    if len(coded) > length or len(found) != length or not decoder.eof or decoder.unused_data:
        raise FileError(f"{name} is not the {length} bytes of a mask, or their codes and nothing else")
    return torch.from_numpy(np.frombuffer(bytearray(found), dtype=np.uint8))
