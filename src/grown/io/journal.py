"""What a killed process goes on from: the trainings of the task under way, a file each.

A task's trainings follow from its data, the settings and the seed, so they come in the same order again. A training
that ended is kept as it ended; the one under way as of a finished epoch, with its optimizers and random numbers. Who
learns the task again is given these back in turn, and computes only what is not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from grown.errors import FileError, Stopped
from grown.io import container, files
from grown.io.fields import Fields
from grown.io.versions import Kind

JOURNAL = Kind("grown-journal", "a state of a training", version=1, sealed=1)
PATIENCE = 50.0  # after a write, so many times its duration pass before the next one
ENDING = ".safetensors"

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Snapshot:
    """A training as of a finished epoch."""

    epoch: int
    epochs: int
    tensors: Tensors

    @property
    def is_final(self) -> bool:
        """Whether this training ended."""
        return self.epoch == self.epochs


class Journal:
    """The states of the trainings of one scope (a task) in a folder."""

    def __init__(self, folder: Path, mark: Callable[[], int] | None = None) -> None:
        self.folder = folder
        self._mark = mark  # how far the run's log has come
        self._scope = ""
        self._count = 0
        self._known = 0  # entries that an earlier process left
        self._caught_up: Callable[[], None] = lambda: None
        self._spent = 0.0
        self._last = time.perf_counter()
        self._stop = False
        self._ended: list[tuple[Path, Tensors, dict[str, Any]]] = []  # trainings that ended, not written yet

    # --- for who learns a task -------------------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str, caught_up: Callable[[], None] | None = None) -> Iterator[None]:
        """While this lasts, trainings are kept under this name; those that were, are given back first.

        `caught_up` is called once nothing is left to be given back.
        """
        self._scope, self._count = name, 0
        self._known = len(self._entries())
        self._ended.clear()
        self._caught_up = caught_up if caught_up is not None else lambda: None
        if not self._known:
            self._caught_up()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def marked(self, scope: str) -> int | None:
        """How far the log had come at the last state of a scope; None if there is none."""
        self._scope = scope
        marks = [Fields(self._read(path)[1], "its metadata").whole("mark") for path in self._entries()]
        return max(marks, default=None)

    def clear(self, scope: str | None = None) -> None:
        """Forget a scope, or everything, with what a process left that was killed while it wrote."""
        for path in self.folder.glob(f"{scope}.*{ENDING}" if scope is not None else f"*{ENDING}"):
            path.unlink(missing_ok=True)
        if scope is None:
            files.clear_leftovers(self.folder)

    def stop_soon(self) -> None:
        """Keep the next epoch that ends, then raise `Stopped`."""
        self._stop = True

    @property
    def is_stopping(self) -> bool:
        """Whether `stop_soon` was called."""
        return self._stop

    def _entries(self) -> list[Path]:
        """The files of the scope, as many as follow each other without a gap."""
        found: list[Path] = []
        while (path := self._path(len(found) + 1)).is_file():
            found.append(path)
        return found

    def _path(self, number: int) -> Path:
        return self.folder / f"{self._scope}.{number}{ENDING}"

    @staticmethod
    def _read(path: Path) -> tuple[Tensors, dict[str, Any]]:
        try:
            return container.load(path, JOURNAL)
        except FileError as error:
            raise FileError(f"{error}; remove it to go on from the last finished task") from error

    # --- for a training --------------------------------------------------------------------------------------------

    def claim(self) -> Entry:
        """The place of the next training."""
        self._count += 1
        return Entry(self, self._path(self._count), self._count)

    def _given_back(self, number: int) -> None:
        if number == self._known:
            self._caught_up()


class Entry:
    """Where one training is kept."""

    def __init__(self, journal: Journal, path: Path, number: int) -> None:
        self._journal = journal
        self._path = path
        self._number = number

    def read(self) -> Snapshot | None:
        """What was kept of this training, if anything."""
        if self._number > self._journal._known:
            return None
        tensors, meta = self._journal._read(self._path)
        fields = Fields(meta, "its metadata")
        epochs = fields.whole("epochs", 1)
        return Snapshot(fields.whole("epoch", 1, epochs), epochs, tensors)

    def taken(self) -> None:
        """The training is as it was kept."""
        self._journal._given_back(self._number)

    def keep(self, epoch: int, epochs: int, tensors: Callable[[], Tensors]) -> None:
        """Keep an epoch that ended, as often as that does not cost much time.

        A training that ended is written at the latest before one that follows it, which may depend on it.
        """
        journal = self._journal
        began = time.perf_counter()
        is_due = journal._stop or began - journal._last >= PATIENCE * journal._spent
        if not is_due and epoch < epochs:
            return
        mark = journal._mark() if journal._mark is not None else 0
        journal._ended.append((self._path, tensors(), {"epoch": epoch, "epochs": epochs, "mark": mark}))
        if not is_due:
            return
        journal.folder.mkdir(parents=True, exist_ok=True)
        for path, values, meta in journal._ended:
            container.save(path, values, meta, JOURNAL)
        journal._ended.clear()
        journal._last = time.perf_counter()
        journal._spent = journal._last - began
        if journal._stop:
            raise Stopped(f"stopped after epoch {epoch} of {epochs}")


_current: ContextVar[Journal | None] = ContextVar("journal", default=None)


def claim() -> Entry | None:
    """The place of the next training in the journal of the moment, if there is one."""
    journal = _current.get()
    return journal.claim() if journal is not None else None
