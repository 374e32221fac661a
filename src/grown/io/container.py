"""A safetensors file with one JSON key of metadata: written atomically, checked when read, never pickled."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from grown.errors import FileError

KEY = "grown"
FORMAT = "grown-model"
VERSION = 1


def dump(tensors: dict[str, Tensor], meta: dict[str, Any]) -> bytes:
    """The file's bytes; equal content gives equal bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    digests = {name: digest(tensor) for name, tensor in sorted(plain.items())}
    full = {"format": FORMAT, "version": VERSION, **meta, "digests": digests}
    text = json.dumps(full, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return safetensors.torch.save(plain, metadata={KEY: text})


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's type, shape and bytes."""
    data = hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode())
    data.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return data.hexdigest()


def write(path: Path, data: bytes) -> None:
    """Replace a file as a whole or not at all: temporary name, fsync, rename, fsync of the folder."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as handle:
            temporary = Path(handle.name)
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise FileError(
            f"cannot write {path}: {error.strerror or error}; what was there before is untouched"
        ) from error


def save(path: str | Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> int:
    """Write a model file; returns its bytes."""
    data = dump(tensors, meta)
    write(Path(path), data)
    return len(data)


def load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A model file's tensors, in memory of their own, and its metadata; both checked."""
    where = Path(path)
    if not where.is_file():
        raise FileError(f"{where}: there is no such file")
    try:
        with safetensors.safe_open(str(where), framework="pt") as handle:
            meta = _metadata(where, handle.metadata())
            # Clones: safetensors hands out misaligned views, and alignment can change a result's last bits.
            tensors = {name: handle.get_tensor(name).clone() for name in handle.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise FileError(f"{where}: not a readable model file ({str(error).splitlines()[0]})") from error
    _check_digests(where, tensors, meta.pop("digests", None))
    return tensors, meta


def _metadata(path: Path, found: dict[str, str] | None) -> dict[str, Any]:
    if not found or set(found) != {KEY}:
        raise FileError(f"{path}: not a model of this library (its metadata lacks {KEY!r})")
    try:
        meta = json.loads(found[KEY])
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: its metadata is not readable JSON") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise FileError(f"{path}: not a model of this library")
    if meta.get("version") != VERSION:
        raise FileError(
            f"{path}: format version {meta.get('version')}, but this release reads version {VERSION}; "
            "use a newer release of grown"
        )
    return meta


def _check_digests(path: Path, tensors: dict[str, Tensor], digests: Any) -> None:
    if not isinstance(digests, dict) or set(digests) != set(tensors):
        raise FileError(f"{path}: its list of digests does not name its tensors")
    for name, tensor in tensors.items():
        if digest(tensor) != digests[name]:
            raise FileError(f"{path}: {name} is damaged (its digest differs)")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
