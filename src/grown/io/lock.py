"""One process at a time in a folder; the kernel forgets the lock of a process that died."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from grown.errors import FileError
from grown.io import files

LOCK = ".lock"  # an empty file when nobody holds the folder

_HELD: dict[Path, int] = {}  # folder -> the open file whose lock says that it is ours


def hold(folder: Path) -> None:
    """Lock a folder for this process, or refuse; the lock ends with `release`, or with the process."""
    try:
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise FileError(f"folder {folder} cannot be written: {error.strerror or error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(file, 20).decode(errors="replace").strip()
        os.close(file)
        raise FileError(
            f"folder {folder} is in use by another process{f' ({owner})' if owner.isdigit() else ''}; "
            "wait for its end, or choose another folder"
        ) from error
    except OSError as error:
        os.close(file)
        raise FileError(f"folder {folder} cannot be locked: {error.strerror or error}") from error
    try:
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
    except OSError as error:
        os.close(file)
        raise FileError(f"folder {folder} cannot be written: {error.strerror or error}") from error
    files.clear_leftovers(folder)
    _HELD[folder.resolve()] = file


def release(folder: Path) -> None:
    """Let others have a folder that this process holds."""
    file = _HELD.pop(folder.resolve(), None)
    if file is not None:
        os.ftruncate(file, 0)
        os.close(file)
