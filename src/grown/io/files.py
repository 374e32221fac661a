"""Writes that survive: a file is replaced as a whole, by one that was read back, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from grown.errors import FileError

PART = ".part"  # how the name of an unfinished file ends
_CHUNK = 2**20
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP)  # what some file systems answer; there is no other way there


def write(path: Path, data: bytes) -> None:
    """Replace a file: temporary name, fsync, read back, rename, fsync of the folder."""
    target = Path(os.path.realpath(path))  # a link stays one
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PART}")
    renamed = False
    try:
        try:
            _write_new(part, data, _mode(target))
            _check_written(part, data)
            os.replace(part, target)  # noqa: PTH105
            renamed = True
        except BaseException:
            _remove(part)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        why = error.strerror or str(error)
        after = "the new file is in place and whole, but may be lost if the machine stops now"
        before = "what was there before is untouched"
        raise FileError(f"cannot write {path}: {why}; {after if renamed else before}") from error


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed process left unfinished; only for who holds the folder alone."""
    for path in folder.glob(f".*{PART}"):
        _remove(path)


def _mode(target: Path) -> int | None:
    """The permissions of the file that is replaced."""
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def _write_new(path: Path, data: bytes, mode: int | None) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        if mode is not None:
            os.fchmod(file, mode)
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)


def _check_written(path: Path, data: bytes) -> None:
    """The previous file is kept until the new one is seen to be what was meant."""
    file = os.open(path, os.O_RDONLY)
    try:
        place = 0
        while place < len(data):
            chunk = os.read(file, _CHUNK)
            if not chunk or data[place : place + len(chunk)] != chunk:
                raise OSError(errno.EIO, "what was written is not what is read back")
            place += len(chunk)
    finally:
        os.close(file)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(file)


def _remove(path: Path) -> None:
    """Remove a file if that is possible: an unfinished one is in nobody's way."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
