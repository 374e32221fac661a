"""Data files from a stranger: pickles and images that would fill memory or take for ever are refused at once."""

from __future__ import annotations

import pickle
import struct
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grown.data.cifar100 import _read_image
from grown.data.plain_pickle import read_pickle
from grown.errors import FileError

NUMPY_BUFFER = b"cnumpy.core.numeric\n_frombuffer\n"


def nested_tuples(levels: int) -> bytes:
    """A dictionary whose key is a tuple of two tuples of two tuples: its hash takes 2 ** levels steps."""
    code = b"\x80\x02}("
    code += b"K\x01\x85q\x00"
    for level in range(levels):
        code += b"h" + bytes([level]) + b"\x86q" + bytes([level + 1])
    return code + b"K\x01u."


PICKLES = {
    "memory by index": b"\x80\x02}r\xff\xff\xff\x7f.",
    "memory by decimal index": b"}p2000000000\n.",
    "a number as bytes": b"\x80\x02" + NUMPY_BUFFER + b"(\x8a\x05\x00\x00\x00\x00\x10NNNtR.",
    "endless byte array": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
    "endless bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
    "endless text": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "tuples of tuples": nested_tuples(60),
    "extension": b"\x80\x02\x82\x01.",
    "old instance": b"(icollections\nOrderedDict\n.",
    "set": b"\x80\x04\x8f.",
}


@pytest.mark.parametrize("case", sorted(PICKLES))
def test_a_pickle_bomb_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(PICKLES[case])
    tracemalloc.start()
    began = time.perf_counter()
    try:
        with pytest.raises(FileError) as caught:
            read_pickle(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - began < 1
    assert peak < 2**20


def test_a_real_pickle_stays_within_the_limits(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = {b"data": np.zeros((300, 3072), np.uint8), b"fine_labels": list(range(300)), b"names": ["x"] * 300}
    for protocol in range(6):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        assert read_pickle(path)["data"].shape == (300, 3072)


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunk(*each) for each in chunks) + chunk(b"IEND", b"")


IMAGES = {
    "gigapixels": png(60_000, 60_000, (b"IDAT", zlib.compress(b"\0" * 10_000))),
    "above Pillow's warning": png(10_000, 10_000, (b"IDAT", zlib.compress(b"\0" * 10_000))),
    "a little too large": png(33, 32, (b"IDAT", zlib.compress(b"\0" * (33 * 3 + 1) * 32))),
    "text bomb": png(32, 32, (b"zTXt", b"a\0\0" + zlib.compress(b"\0" * 100_000_000, 9)), (b"IDAT", b"x")),
    "no pixels": png(32, 32),
    "broken stream": png(32, 32, (b"IDAT", b"not zlib at all")),
    "broken chunk": png(32, 32, (b"IDAT", zlib.compress(b"\0" * 97 * 32))).replace(b"IDAT", b"IDAU"),
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\nshowpage\n",
    "too many bytes": png(32, 32, (b"IDAT", zlib.compress(b"\0" * 97 * 32))) + b"\0" * 2**20,
    "empty": b"",
}


@pytest.mark.parametrize("case", sorted(IMAGES))
def test_an_image_bomb_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(IMAGES[case])
    began = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(FileError) as caught:
            _read_image(path, Image)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert time.perf_counter() - began < 1
    assert peak < 8 * 2**20


def test_a_good_image_is_read(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for name in ("a.png", "a.bmp"):
        Image.fromarray(pixels).save(tmp_path / name)
        assert np.array_equal(_read_image(tmp_path / name, Image), pixels)
