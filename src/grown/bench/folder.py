"""A run's folder: claimed and locked before anything is written, then run.json, log.jsonl, the model and the result."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from grown.errors import FileError
from grown.io import files, lock

CONTRACT = 1  # of run.json and result.json: raised when what is in them changes its meaning


def claim(out: Path | None, benchmark: str, method: str, seed: int) -> Path:
    """Make the folder; a given one must not exist yet."""
    folder = out if out is not None else _free_name(benchmark, method, seed)
    try:
        if folder.exists():
            raise FileError(f"output folder {folder} exists already; choose another with --out, or remove it")
        folder.mkdir(parents=True)
    except OSError as error:
        raise FileError(f"output folder {folder} cannot be written: {error.strerror or error}") from error
    lock.hold(folder)
    return folder


def _free_name(benchmark: str, method: str, seed: int) -> Path:
    stem = f"{benchmark}-{method}-seed{seed}"
    folder, number = Path("runs") / stem, 2
    while folder.exists():
        folder, number = Path("runs") / f"{stem}-{number}", number + 1
    return folder


def write_json(path: Path, data: Any) -> None:
    """Readable JSON, written as a whole or not at all."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    files.write(path, (text + "\n").encode())


def versions() -> dict[str, str]:
    """What a result may depend on."""
    from grown import __version__

    return {
        "grown": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


class Log:
    """An event a line, with the seconds since the run began; its end is the end of the hold on its folder."""

    def __init__(self, path: Path, also: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._began = time.perf_counter()
        self._also = also
        self._folder = path.parent
        self._muted = False
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error

    def __call__(self, event: dict[str, Any]) -> None:
        """Write one event, and hand it on."""
        line = {"seconds": round(time.perf_counter() - self._began, 3), **event}
        if not self._muted:
            try:
                self._file.write(json.dumps(line) + "\n")
                self._file.flush()
            except OSError as error:
                raise FileError(f"cannot write {self._file.name}: {error.strerror or error}") from error
        self.show(event)

    def show(self, event: dict[str, Any]) -> None:
        """Hand an event on without writing it."""
        if self._also is not None:
            self._also(event)

    def mark(self) -> int:
        """How long the file is."""
        return self._file.tell()

    def cut(self, mark: int) -> None:
        """Drop what was written behind a mark: it will be written again."""
        if mark < self._file.tell():
            self._file.truncate(mark)

    def mute(self) -> None:
        """Write nothing until `unmute`."""
        self._muted = True

    def unmute(self) -> None:
        """Write events again."""
        self._muted = False

    def close(self) -> None:
        """Close the file and let go of the folder."""
        self._file.close()
        lock.release(self._folder)
