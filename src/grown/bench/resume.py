"""How far a run has come, in its folder, and how it is asked to stop."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from grown.bench import folder
from grown.data import Task
from grown.errors import FileError, Stopped
from grown.io import strict_json
from grown.io.journal import Journal

FILE = "progress.json"
MODEL, NEXT_MODEL = "model.safetensors", "model.next.safetensors"
JOURNAL = "resume"  # the folder of the task under way


@dataclass
class Progress:
    """What finished tasks came to. It is written after a task's model, and only then that model takes its place."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    matrix: list[list[float]] = field(default_factory=list)
    alone: list[float | None] = field(default_factory=list)  # Scratch's test accuracies, where they are known
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "evaluation": 0.0, "total": 0.0})
    mark: int = 0  # bytes of the log at the end of the last task
    model: str = ""  # SHA-256 of the model with these tasks

    @property
    def done(self) -> int:
        """Tasks that are finished."""
        return len(self.rows)

    def write(self, where: Path) -> None:
        """Finish a task: from here on a resumed run begins behind it."""
        self.model = _digest(where / NEXT_MODEL)
        folder.write_json(where / FILE, asdict(self))
        self._settle_model(where)

    @staticmethod
    def read(where: Path) -> Progress:
        """As far as the run in this folder came."""
        progress = Progress()
        if (where / FILE).exists():
            try:
                progress = Progress(**read_json(where / FILE))
                consistent = len(progress.rows) == len(progress.matrix) == len(progress.alone) > 0
            except TypeError:
                consistent = False
            if not consistent:
                raise FileError(f"{where / FILE}: this is not the progress of a run")
        progress._settle_model(where)
        return progress

    def _settle_model(self, where: Path) -> None:
        """The next model takes its place if it is the one that this progress speaks of; otherwise it never was."""
        ahead, model = where / NEXT_MODEL, where / MODEL
        try:
            if ahead.exists() and _digest(ahead) == self.model:
                ahead.replace(model)
            else:
                ahead.unlink(missing_ok=True)
        except OSError as error:
            raise FileError(f"cannot write {model}: {error.strerror or error}") from error
        if self.done and (not model.is_file() or _digest(model) != self.model):
            raise FileError(f"{model} is not the model that {where / FILE} speaks of; this run cannot go on")


def tidy(where: Path, journal: Journal) -> None:
    """A finished run is not gone on with."""
    journal.clear()
    (where / FILE).unlink(missing_ok=True)
    if (where / JOURNAL).is_dir():
        (where / JOURNAL).rmdir()


def read_json(path: Path) -> Any:
    """A JSON file of a run."""
    try:
        return strict_json.read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except (FileError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {error}") from error


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def data_digests(tasks: list[Task]) -> list[str]:
    """What tells whether a run goes on with the data that it began with."""
    found = []
    for task in tasks:
        digest = hashlib.sha256(task.name.encode())
        for part in (task.train, task.test):
            for tensor in (*part.chunks(1000), part.labels):
                digest.update(tensor.contiguous().numpy().data)
        if task.validation is not None:
            digest.update(repr(task.validation).encode())
        found.append(digest.hexdigest()[:16])
    return found


class Stoppable(Protocol):
    """What can be asked to keep what it has, and end."""

    @property
    def is_stopping(self) -> bool: ...

    def stop_soon(self) -> None: ...


@contextmanager
def stoppable(journal: Stoppable, tell: Any) -> Iterator[None]:
    """While this lasts, Ctrl-C or SIGTERM ends the run after the present epoch; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        asked.append(number)
        if journal.is_stopping:
            raise KeyboardInterrupt
        journal.stop_soon()
        tell({"event": "stopping", "signal": signal.Signals(number).name})

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Stopped as stop:
        if asked:  # else it was stopped further inside
            stop.code = 128 + asked[-1]
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
