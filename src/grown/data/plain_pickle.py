"""Reads a pickle as data: numbers, texts, lists, dicts and byte arrays. Nothing that it names is ever called.

The official CIFAR files are pickles. A pickle may name any function of any module; this reader replaces the few
names that NumPy arrays need by inert stand-ins and refuses every other.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grown.errors import FileError

LARGEST = 400 * 2**20  # bytes; the official training file has 155 MB
MOST_REMEMBERED = 10_000_000  # a pickle's memory is a table as long as its highest index
MOST_TUPLES = 20  # an array needs about five; tuples of tuples take for ever to hash
_NOT_DATA = frozenset({"EXT1", "EXT2", "EXT4", "INST", "OBJ", "NEWOBJ_EX", "FROZENSET", "EMPTY_SET", "ADDITEMS"})


class _Kind:
    """Stands for `numpy.ndarray` and `numpy.dtype`, and remembers what it was made with."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Kind):
    """Stands for an array that was being rebuilt."""


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any) -> _Array:
    """How protocol 5 writes an array."""
    if not isinstance(content, bytes | bytearray | pickle.PickleBuffer):  # of a number, bytes() makes so many
        raise pickle.UnpicklingError("an array has no content")
    array = _Array()
    array.state = (1, shape, kind, order == "F", bytes(content))
    return array


def _encode(text: str, encoding: str) -> bytes:
    """What `_codecs.encode` is used for in pickles of byte strings."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("a strange byte string")
    return text.encode("latin1")


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Kind,
    ("numpy", "dtype"): _Kind,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which data does not need")
        return _NAMES[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it refers to something outside, {pid!r}")


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file; keys as text, arrays of bytes as NumPy arrays."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise FileError(f"{path}: {size:,} bytes is more than a CIFAR file has")
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    try:
        _look_through(data)
        found = _Reader(io.BytesIO(data), encoding="latin1").load()
        if not isinstance(found, dict):
            raise pickle.UnpicklingError("it holds no dictionary")
        return {_text(key): _plain(value) for key, value in found.items()}
    except FileError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"{path}: not a readable CIFAR file ({reason})") from error


def _look_through(data: bytes) -> None:
    """Read a pickle's instructions without following them, and refuse those that would take memory or time."""
    tuples = 0
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in _NOT_DATA:
            raise pickle.UnpicklingError(f"it uses {operation.name}, which data does not need")
        if operation.name.endswith("PUT") and int(argument or 0) > MOST_REMEMBERED:
            raise pickle.UnpicklingError(f"it remembers something as number {argument}")
        tuples += operation.name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
        if tuples > MOST_TUPLES:
            raise pickle.UnpicklingError(f"it has more than {MOST_TUPLES} tuples")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    if not isinstance(value, str):
        raise pickle.UnpicklingError(f"a key is {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return _bytes_array(value.state)
    if isinstance(value, list):
        return [_text(part) if isinstance(part, bytes) else part for part in value]
    return _text(value) if isinstance(value, bytes) else value


def _bytes_array(state: Any) -> NDArray[np.uint8]:
    """An array of unsigned bytes from what NumPy's `__setstate__` would have been given."""
    _, shape, kind, fortran, raw = state
    if not isinstance(kind, _Kind) or kind.arguments[0] not in ("u1", "|u1"):
        raise pickle.UnpicklingError("an array is not of unsigned bytes")
    content = raw.encode("latin1") if isinstance(raw, str) else raw
    if not isinstance(content, bytes):
        raise pickle.UnpicklingError("an array has no content")
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes) or int(np.prod(sizes, dtype=object)) != len(content):
        raise pickle.UnpicklingError(f"an array of shape {sizes} does not have {len(content)} bytes")
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes, order="F" if fortran else "C")
