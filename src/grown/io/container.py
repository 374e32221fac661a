"""A safetensors file with one JSON key of metadata: written atomically, checked when read, never pickled."""

from __future__ import annotations

import hashlib
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from grown.errors import FileError
from grown.io import files, header, strict_json
from grown.io.header import Header
from grown.io.versions import MODEL, Kind

KEY = "grown"
VERSION = MODEL.version
SEAL = "digest"  # of the metadata themselves


@dataclass(frozen=True)
class Content:
    """A file as it was found: well-formed, its digests compared."""

    tensors: dict[str, Tensor]  # in memory of their own
    meta: dict[str, Any]  # as the present version has them, without digests
    written: int  # the version that the file has
    size: int
    sha256: str  # of the whole file; "" where nobody asked
    damaged: tuple[str, ...]  # tensors whose digest differs
    metadata_damaged: bool
    not_finite: tuple[str, ...]  # tensors that hold NaN or infinity


def dump(tensors: dict[str, Tensor], meta: dict[str, Any], kind: Kind = MODEL) -> bytes:
    """The file's bytes; equal content gives equal bytes."""
    start, names = _start(tensors, meta, kind)
    return b"".join([start, *(_bytes_of(tensors[name].cpu()) for name in names)])


def length(tensors: dict[str, Tensor], meta: dict[str, Any], kind: Kind = MODEL) -> int:
    """How many bytes the file has, without making it."""
    start, _ = _start(tensors, meta, kind)
    return len(start) + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _start(tensors: dict[str, Tensor], meta: dict[str, Any], kind: Kind) -> tuple[bytes, list[str]]:
    """The header, and the order in which the tensors follow."""
    digests = {name: _known_digest(tensor) for name, tensor in sorted(tensors.items())}
    full = {"format": kind.name, "version": kind.version, **meta, "digests": digests}
    return header.make(tensors, {KEY: strict_json.write({**full, SEAL: _seal(full)})})


_KNOWN = WeakTensorKeyDictionary()  # tensor -> how often it was written to, and its digest by then


def _known_digest(tensor: Tensor) -> str:
    """The digest of a tensor that is to be written: of one that did not change since, the one of last time."""
    if tensor.is_inference() or tensor.device.type != "cpu":  # nothing counts the writes to such a one
        return digest(tensor.cpu())
    if tensor not in _KNOWN or _KNOWN[tensor][0] != tensor._version:
        _KNOWN[tensor] = (tensor._version, digest(tensor))
    found: str = _KNOWN[tensor][1]
    return found


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's type, shape and bytes."""
    data = hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode())
    data.update(_bytes_of(tensor))
    return data.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    found: memoryview = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
    return found


def save(path: str | Path, tensors: dict[str, Tensor], meta: dict[str, Any], kind: Kind = MODEL) -> int:
    """Write a file; returns its bytes. What could not be read back is not written."""
    data = dump(tensors, meta, kind)
    check_writable(path, data, tensors)
    files.write(Path(path), data)
    return len(data)


def check_writable(path: str | Path, data: bytes, tensors: dict[str, Tensor]) -> None:
    """Refuse to write what no reader would take."""
    try:
        length = header.header_length(data[: header.PREFIX], len(data))
        found = header.parse(data[header.PREFIX : header.PREFIX + length], len(data))
        strict_json.read(found.metadata[KEY])
        if wrong := _not_finite(tensors):
            raise FileError(f"{wrong[0]} holds NaN or infinity")
    except FileError as error:
        raise FileError(f"cannot write {path}: {error}; what was there before is untouched") from error


def load(path: str | Path, kind: Kind = MODEL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A file's tensors, in memory of their own, and its metadata; both checked."""
    content = read_good(path, kind)
    return content.tensors, content.meta


def read_good(path: str | Path, kind: Kind = MODEL, *, identify: bool = False) -> Content:
    """A file that is as it was written; raises where anything of it is damaged."""
    content = read(path, kind, identify=identify)
    if content.metadata_damaged:
        raise FileError(f"{path}: its metadata are damaged (their digest differs)")
    if content.damaged:
        raise FileError(f"{path}: {content.damaged[0]} is damaged (its digest differs)")
    if content.not_finite:
        raise FileError(f"{path}: {content.not_finite[0]} holds NaN or infinity")
    return content


def read(path: str | Path, kind: Kind = MODEL, *, identify: bool = False) -> Content:
    """A file as it is, with what its digests say; raises where it is not even well-formed."""
    where = Path(path)
    if not where.is_file():
        raise FileError(f"{where}: there is no such file")
    try:
        with where.open("rb") as handle:
            return _read(handle, os.fstat(handle.fileno()).st_size, kind, identify)
    except OSError as error:
        raise FileError(f"{where}: cannot be read ({error.strerror or error})") from error
    except FileError as error:
        raise FileError(f"{where}: not a readable file: {error}") from error


def parse(data: bytes, kind: Kind = MODEL) -> Content:
    """The same for a file in memory."""
    return _read(io.BytesIO(data), len(data), kind, identify=True)


def _read(handle: BinaryIO, size: int, kind: Kind, identify: bool) -> Content:
    whole = hashlib.sha256()
    start = handle.read(header.PREFIX)
    raw = handle.read(header.header_length(start, size))
    whole.update(start + raw)
    found = header.parse(raw, size)
    meta, digests, sealed = _metadata(found, kind)
    version = kind.version_of(meta)
    meta = kind.upgrade(meta)
    tensors = {}
    for entry in found.entries:
        # Straight into memory of its own: a view of the file would be misaligned, and would end with the file.
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        space = tensor.flatten().view(torch.uint8).numpy().data
        if handle.readinto(space) != entry.end - entry.start:  # type: ignore[attr-defined]
            raise FileError(f"{entry.name} is cut off")
        if identify:
            whole.update(space)
        tensors[entry.name] = tensor
    damaged = tuple(name for name, tensor in tensors.items() if digest(tensor) != digests[name])
    identity = whole.hexdigest() if identify else ""
    return Content(tensors, meta, version, size, identity, damaged, not sealed, _not_finite(tensors))


def _metadata(found: Header, kind: Kind) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """The metadata, the tensors' digests, and whether the metadata's own digest is right."""
    if set(found.metadata) != {KEY}:
        raise FileError(f"it is not {kind.words} of this library (its metadata lack {KEY!r})")
    meta = strict_json.read(found.metadata[KEY])
    if not isinstance(meta, dict) or meta.get("format") != kind.name:
        raise FileError(f"it is not {kind.words} of this library")
    sealed = True
    if kind.version_of(meta) >= kind.sealed:
        seal = meta.pop(SEAL, None)
        sealed = seal == _seal(meta)
    digests = meta.pop("digests", None)
    if not isinstance(digests, dict) or set(digests) != {entry.name for entry in found.entries}:
        raise FileError("its list of digests does not name its tensors")
    return meta, digests, sealed


def _seal(meta: dict[str, Any]) -> str:
    return hashlib.sha256(strict_json.write(meta).encode()).hexdigest()


def _not_finite(tensors: dict[str, Tensor]) -> tuple[str, ...]:
    return tuple(name for name, tensor in tensors.items() if tensor.is_floating_point() and not _is_finite(tensor))


def _is_finite(tensor: Tensor) -> bool:
    """Whether all values are. A sum that is finite shows it at once; one that is not may only be too large."""
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())
