"""Cells on a Ray cluster: what a run's folder holds travels as bytes, so that no file system need be shared."""

from __future__ import annotations

import dataclasses
import importlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from grown.bench.cells import RUN, Ending, attempt, one_line, place_target
from grown.bench.grid import Cell
from grown.config import is_target_file
from grown.data.folders import PREFIX
from grown.errors import ConfigError, FileError
from grown.io import files, lock
from grown.methods.base import Observer

ANSWER = 5.0  # seconds within which somebody must answer at an address
RETRIES = 5  # how often a cell is run again whose worker was lost
POLL = 0.5  # seconds between looks at whether to stop

Files = dict[str, bytes]  # of a folder, by their path in it


class Cluster:
    """The workers of a Ray cluster, as many cells at once as it has room for."""

    room = 100_000
    elsewhere = True

    def __init__(self, address: str | None, per_gpu: int, observer: Observer) -> None:
        self.is_stopping = False
        self._address = address
        self._per_gpu = per_gpu
        self._observer = observer
        self._running: dict[Any, Cell] = {}
        self._ray: Any = None
        self._is_asked = False

    def __enter__(self) -> Self:
        self._ray = _connect(self._address)
        return self

    def __exit__(self, *_: object) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    def start(self, cell: Cell) -> None:
        """Send a cell, what is there of it, and its targets."""
        asked = cell.request
        on_gpu = asked.device.startswith("cuda")
        wants = {"num_cpus": asked.threads or 1, "num_gpus": 1 / self._per_gpu if on_gpu else 0}
        send = self._ray.remote(_run_there).options(max_retries=RETRIES, name=cell.name, **wants)
        target = Path(str(asked.target)).read_bytes() if is_target_file(asked.target) else None
        self._running[send.remote(_from_anywhere(cell), pack(cell.folder), target)] = cell

    def wait(self) -> tuple[Cell, Ending]:
        """Until a cell has ended; what came back is in its folder then."""
        ready: list[Any] = []
        while not ready:
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL)
            if self.is_stopping and not self._is_asked:
                self._is_asked = True
                for reference in self._running:
                    self._ray.cancel(reference, force=False)  # comes as Ctrl-C to the worker, so the epoch is kept
        cell = self._running.pop(ready[0])
        try:
            ending, kept = self._ray.get(ready[0])
        except self._ray.exceptions.TaskCancelledError:
            return cell, Ending("stopped", "stopped")
        except self._ray.exceptions.RayError as error:
            return cell, Ending("failed", one_line(f"on the cluster: {type(error).__name__}: {error}"))
        try:
            if kept:
                _put(cell.folder, kept)
        except FileError as error:
            return cell, Ending("failed", str(error))
        return cell, ending

    def stop_soon(self) -> None:
        """Ask every cell to stop after its epoch; a signal's handler may call this, so Ray is told elsewhere."""
        self.is_stopping = True


def _connect(address: str | None) -> Any:
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError("--ray needs Ray: pip install 'grown[ray]'") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if (known := address if address is not None else os.environ.get("RAY_ADDRESS")) is not None:
        _check_answers(known)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = address if address is not None else "on this machine"
        raise ConfigError(f"--ray: no Ray cluster answers at {where}: {one_line(str(error))}") from error
    return ray


def _check_answers(address: str) -> None:
    """Refuse an address where no Ray cluster is; Ray itself asks there for minutes."""
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--ray takes HOST:PORT, ray://HOST:PORT or auto, but got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()
        is_well = address.startswith("ray://") or subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address],
            timeout=2 * ANSWER,
            check=False,
            capture_output=True,
        ).returncode == 0  # fmt: skip
    except (OSError, OverflowError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--ray: nobody answers at {address}; start a cluster with `ray start`") from error
    if not is_well:
        raise ConfigError(f"--ray: what answers at {address} is not a Ray cluster that works with this Ray")


def _from_anywhere(cell: Cell) -> Cell:
    """The same cell with paths that do not depend on the folder that one is in."""
    asked = cell.request
    data = asked.data.resolve() if asked.data is not None else None
    benchmark = f"{PREFIX}{asked.folder.resolve()}" if asked.folder is not None else asked.benchmark
    return dataclasses.replace(cell, request=dataclasses.replace(asked, data=data, benchmark=benchmark))


def _run_there(cell: Cell, kept: Files, target: bytes | None) -> tuple[Ending, Files]:
    """On a worker: run a cell in a folder of its own, and give back what is in it then."""
    with tempfile.TemporaryDirectory(prefix="grown-") as root:
        where, asked = Path(root) / cell.folder.name, cell.request
        moved = asked.target
        if target is not None:
            origin = Path(str(asked.target)).absolute()
            moved = Path(root) / origin.parent.name / origin.name
            moved.parent.mkdir(exist_ok=True)
            moved.write_bytes(target)
        if kept:
            unpack(where, kept)
        ending = attempt(dataclasses.replace(cell, request=dataclasses.replace(asked, out=where, target=moved)))
        if (where / RUN).is_file():
            place_target(where, asked.target)
        here = str(cell.folder.parent)
        told = dataclasses.replace(ending, why=ending.why.replace(root, here), trace=ending.trace.replace(root, here))
        return told, pack(where)


def pack(folder: Path) -> Files:
    """All files of a run's folder, but for what only means something where it lies."""
    found = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in found
        if path.name != lock.LOCK and not path.name.endswith(files.PART)
    }


def unpack(folder: Path, kept: Files) -> None:
    """Write them again."""
    for name, content in kept.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, content)


def _put(folder: Path, kept: Files) -> None:
    """A folder takes the place of what was sent, as a whole."""
    ahead, behind = (folder.with_name(f".{folder.name}.{place}{files.PART}") for place in ("ahead", "behind"))
    try:
        for path in (ahead, behind):
            shutil.rmtree(path, ignore_errors=True)
        unpack(ahead, kept)
        if folder.exists():
            folder.rename(behind)
        ahead.rename(folder)
        shutil.rmtree(behind, ignore_errors=True)
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror or error}") from error
