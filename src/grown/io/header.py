"""A safetensors header, written, and read strictly: all of it is checked before a tensor is made."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grown.errors import FileError
from grown.io import strict_json

PREFIX = 8  # bytes in front: the header's length, little-endian
LARGEST = 16 * 2**20  # bytes of a header
LONGEST_NAME = 300
MOST_AXES = 8
LONGEST_AXIS = 2**40
METADATA = "__metadata__"
TYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


NAMES = {dtype: name for name, dtype in TYPES.items()}
# The order in which the safetensors library writes tensors: large elements first, which keeps all aligned.
ORDER = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies; places count from the end of the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    metadata: dict[str, str]
    entries: tuple[Entry, ...]  # in the order in which they lie
    length: int  # where the tensors begin


def make(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> tuple[bytes, list[str]]:
    """What stands in front of these tensors, and their names in the order in which they follow.

    Byte for byte what the safetensors library writes.
    """
    names = sorted(tensors, key=lambda name: (ORDER.index(NAMES[tensors[name].dtype]), name))
    found: dict[str, Any] = {METADATA: metadata}
    place = 0
    for name in names:
        tensor = tensors[name]
        end = place + tensor.numel() * tensor.element_size()
        found[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % PREFIX)
    return len(text).to_bytes(PREFIX, "little") + text, names


def header_length(start: bytes, size: int) -> int:
    """The header's length, from the file's first bytes and its size."""
    if len(start) < PREFIX or size < PREFIX:
        raise FileError("it is shorter than a header's length")
    length = int.from_bytes(start[:PREFIX], "little")
    if length > LARGEST:
        raise FileError(f"its header claims {length:,} bytes; at most {LARGEST:,} are read")
    if length > size - PREFIX:
        raise FileError(f"its header claims {length:,} bytes, but {size - PREFIX:,} follow")
    return length


def parse(raw: bytes, size: int) -> Header:
    """The header of a file of `size` bytes, checked."""
    if len(raw) != header_length(len(raw).to_bytes(PREFIX, "little"), size) or not raw.startswith(b"{"):
        raise FileError("its header is cut off or no JSON object")
    if re.search(rb"[\xf0-\xff]", raw):  # a single one would make Python's text four times as large
        raise FileError("its header has characters outside the basic plane")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError("its header is not UTF-8") from error
    found = strict_json.read(text, longest_text=LARGEST)
    metadata = found.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FileError("its metadata is not a table of texts")
    entries = [_entry(name, about) for name, about in found.items()]
    entries.sort(key=lambda entry: (entry.start, entry.end))
    place = 0
    for entry in entries:
        if entry.start != place:
            what = "overlaps another tensor" if entry.start < place else "leaves a gap in front"
            raise FileError(f"{entry.name} {what}")
        place = entry.end
    if place != size - PREFIX - len(raw):
        raise FileError(f"its tensors take {place:,} bytes, but {size - PREFIX - len(raw):,} follow the header")
    return Header(metadata, tuple(entries), PREFIX + len(raw))


def check_name(name: str) -> None:
    """Refuse a tensor's name that could be taken for anything else, such as a path."""
    parts = name.split("/")
    if len(name) > LONGEST_NAME or not name.isprintable() or "\\" in name or any(p in ("", ".", "..") for p in parts):
        raise FileError(f"a tensor is named {name[:60]!r}")


def _entry(name: str, about: Any) -> Entry:
    check_name(name)
    if not isinstance(about, dict) or set(about) != {"dtype", "shape", "data_offsets"}:
        raise FileError(f"{name}: its entry is not dtype, shape and data_offsets")
    if not isinstance(about["dtype"], str) or about["dtype"] not in TYPES:
        raise FileError(f"{name}: its type is {str(about['dtype'])[:30]!r}. Choices: {', '.join(TYPES)}")
    shape = _wholes(name, "shape", about["shape"], MOST_AXES)
    start, end = _wholes(name, "data_offsets", about["data_offsets"], 2, exactly=True)
    dtype = TYPES[about["dtype"]]
    needs = math.prod(shape) * dtype.itemsize
    if end - start != needs:
        raise FileError(f"{name}: a tensor of {list(shape)} needs {needs:,} bytes, but has {end - start:,}")
    return Entry(name, dtype, shape, start, end)


def _wholes(name: str, what: str, values: Any, most: int, *, exactly: bool = False) -> tuple[int, ...]:
    good = (
        isinstance(values, list)
        and (len(values) == most if exactly else len(values) <= most)
        and all(type(value) is int and 0 <= value <= LONGEST_AXIS for value in values)
    )
    if not good:
        raise FileError(f"{name}: its {what} is {str(values)[:60]}")
    return tuple(values)
