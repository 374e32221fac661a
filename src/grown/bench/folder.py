"""A run's folder: claimed and locked before anything is written, then run.json, log.jsonl, the model and the result."""

from __future__ import annotations

import json
import os
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
    """An event a line, with the seconds that the run has taken; its end is the end of the hold on its folder."""

    def __init__(self, path: Path, also: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._began = time.perf_counter()
        self._path = path
        self._also = also
        self._muted = False
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error

    def __call__(self, event: dict[str, Any]) -> None:
        """Write one event, and hand it on."""
        line = {"seconds": round(self.seconds, 3), **event}
        if not self._muted:
            try:
                self._file.write(json.dumps(line) + "\n")
                self._file.flush()
            except OSError as error:
                raise FileError(f"cannot write {self._path}: {error.strerror or error}") from error
        self.show(event)

    def show(self, event: dict[str, Any]) -> None:
        """Hand an event on without writing it."""
        if self._also is not None:
            self._also(event)

    def mark(self) -> int:
        """How long the file is."""
        return self._file.tell()

    @property
    def seconds(self) -> float:
        """How long the run has taken: in this process, and in earlier ones up to where it goes on."""
        return time.perf_counter() - self._began

    def go_on(self, mark: int) -> None:
        """Drop what was written behind a mark, since it will be written again; the seconds go on from there too."""
        try:
            kept = self._path.read_bytes()[:mark]
            whole = kept[: kept.rfind(b"\n") + 1]  # a machine that went down may have left half a line
            self._file.truncate(len(whole))
            self._file.seek(0, os.SEEK_END)
            earlier = float(json.loads(whole.splitlines()[-1])["seconds"]) if whole else 0.0
        except OSError as error:
            raise FileError(f"cannot write {self._path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{self._path}: this is not the log of a run") from error
        self._began = time.perf_counter() - earlier

    def mute(self) -> None:
        """Write nothing until `unmute`."""
        self._muted = True

    def unmute(self) -> None:
        """Write events again."""
        self._muted = False

    def close(self) -> None:
        """Close the file and let go of the folder."""
        self._file.close()
        lock.release(self._path.parent)
