"""`grown compare`: runs what is missing of a grid, whoever does the work, and gives all results back."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from grown.bench import folder, resume
from grown.bench.cells import RESULT, RUN, Ending, attempt, is_done
from grown.bench.grid import SCRATCH, Cell, Grid
from grown.bench.request import Request, first_tasks, read_tasks
from grown.errors import FileError, Stopped
from grown.io import files, lock
from grown.methods.base import Observer

NEEDED = (
    "benchmark", "backbone", "recipe", "protocol", "device", "base_parameters", "tasks", "accuracy_matrix",
    "average_accuracy", "forgetting", "size_x", "bytes_x", "seconds",
)  # fmt: skip


class Crew(Protocol):
    """Who runs the cells: this process, several, or a cluster."""

    room: int  # for cells at once
    elsewhere: bool  # on other machines

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def start(self, cell: Cell) -> None: ...

    def wait(self) -> tuple[Cell, Ending]: ...  # until one of those that were started has ended

    @property
    def is_stopping(self) -> bool: ...

    def stop_soon(self) -> None: ...


class Here:
    """This process, one cell after the other."""

    room = 1
    elsewhere = False

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer
        self._cell: Cell | None = None
        self.is_stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, cell: Cell) -> None:
        """Take a cell; it is run when it is waited for."""
        self._cell = cell

    def wait(self) -> tuple[Cell, Ending]:
        """Run it."""
        assert self._cell is not None
        return self._cell, attempt(self._cell, self._observer)

    def stop_soon(self) -> None:
        """Begin no other cell."""
        self.is_stopping = True


@dataclass
class Comparison:
    """A grid with what its runs came to."""

    grid: Grid
    cells: list[Cell]
    tasks: list[str]
    results: dict[Cell, dict[str, Any]] = field(default_factory=dict)
    failures: dict[Cell, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def compare(grid: Grid, crew: Crew, tell: Observer) -> Comparison:
    """Run what is missing of a grid; a cell that fails stops no other.

    An event "cell" is told when a cell is found done, begins, or ends.
    """
    tasks = grid.check(elsewhere=crew.elsewhere)
    try:
        grid.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"output folder {grid.out} cannot be written: {error.strerror or error}") from error
    lock.hold(grid.out)
    try:
        return _Work(grid, crew, tell, [task.name for task in tasks]).go()
    finally:
        lock.release(grid.out)


class _Work:
    """A comparison under way."""

    def __init__(self, grid: Grid, crew: Crew, tell: Observer, tasks: list[str]) -> None:
        self.crew, self.tell = crew, tell
        self._known: dict[Request, list[str]] = {}
        self.cells = grid.cells(self._is_scratch_done)
        self.done = [cell for cell in self.cells if is_done(cell, self._digests)]
        self.found = Comparison(grid, self.cells, tasks)
        for cell in self.done:
            self.found.results[cell] = read_result(cell)

    def _is_scratch_done(self, cell: Cell) -> bool:
        """Whether Scratch can be built on; where it is not asked for, what else lies in its place is no matter."""
        try:
            return is_done(cell, self._digests)
        except FileError:
            return False

    def _digests(self, cell: Cell) -> list[str]:
        """What the data of a cell are told apart by; read once for cells that learn the same."""
        asked = dataclasses.replace(cell.request, method=SCRATCH, label="", settings=(), target=None, out=None)
        if asked not in self._known:
            self._known[asked] = resume.data_digests(first_tasks(read_tasks(asked), asked))
        return self._known[asked]

    def go(self) -> Comparison:
        for cell in self.cells:
            if cell in self.done:
                self._tell(cell, "skipped")
        todo = [cell for cell in self.cells if cell not in self.done]
        try:
            if todo:
                with resume.stoppable(self.crew, self.tell), self.crew:
                    self._run(todo)
        except KeyboardInterrupt as error:
            raise Stopped(f"interrupted; {self._how_to_go_on()}") from error
        self.found.notes += notes(self.found)
        return self.found

    def _run(self, todo: list[Cell]) -> None:
        running: list[Cell] = []
        stopped: Ending | None = None
        while running or (todo and not self.crew.is_stopping):
            while len(running) < self.crew.room and not self.crew.is_stopping and (cell := self._next(todo)):
                todo.remove(cell)
                running.append(cell)
                self._tell(cell, "begins")
                self.crew.start(cell)
            if not running:  # what is left builds on what failed
                break
            cell, ending = self.crew.wait()
            running.remove(cell)
            if ending.state == "stopped":
                stopped = ending
                if not self.crew.is_stopping:
                    self.crew.stop_soon()
            else:
                self._end(cell, ending)
        if self.crew.is_stopping and (todo or stopped is not None):
            stop = Stopped(f"{stopped.why if stopped is not None else 'stopped'}; {self._how_to_go_on()}")
            stop.code = stopped.code if stopped is not None else stop.code
            raise stop

    def _next(self, todo: list[Cell]) -> Cell | None:
        """A cell whose targets are there; one whose targets will never be is failed on the way."""
        lost = {cell.folder: cell for cell in self.found.failures}
        for cell in list(todo):
            if cell.needs in lost:
                todo.remove(cell)
                self._end(cell, Ending("failed", f"its targets are those of {lost[cell.needs].name}, which failed"))
        ready = (cell for cell in todo if cell.needs is None or (cell.needs / RESULT).is_file())
        return next(ready, None)

    def _end(self, cell: Cell, ending: Ending) -> None:
        trace = cell.folder.with_name(f"{cell.folder.name}.error.txt")
        trace.unlink(missing_ok=True)
        why = ending.why
        if ending.state == "done":
            self.found.results[cell] = read_result(cell)
        else:
            if ending.trace:
                files.write(trace, ending.trace.encode())
                why = f"{why} (see {trace})"
            self.found.failures[cell] = why
        self._tell(cell, ending.state, why)

    def _tell(self, cell: Cell, state: str, why: str = "") -> None:
        number = self.cells.index(cell) + 1
        about = {"cell": cell.name, "folder": str(cell.folder), "number": number, "of": len(self.cells)}
        self.tell({"event": "cell", "state": state, "why": why, **about, "result": self.found.results.get(cell)})

    def _how_to_go_on(self) -> str:
        done = len(self.found.results)
        return f"{done} of {len(self.cells)} runs are done; go on with: the same command again"


def read_result(cell: Cell) -> dict[str, Any]:
    """What a finished run came to."""
    found = resume.read_json(cell.folder / RESULT)
    lacking = [key for key in NEEDED if key not in found] if isinstance(found, dict) else NEEDED
    if lacking:
        raise FileError(f"{cell.folder / RESULT}: this is not the result of a run, it lacks {', '.join(lacking)}")
    return dict(found)


def notes(found: Comparison) -> list[str]:
    """What must be known of the results beside their numbers."""
    said = []
    results = {cell: found.results[cell] for cell in found.cells if cell in found.results}
    sharing = list(dict.fromkeys(cell.setting for cell in results if _shares(cell)))
    if sharing:
        said.append(
            f"The targets of {', '.join(sharing)} are the held-out accuracies of Scratch's run with the same seed; "
            "Scratch was not trained again for them, so their seconds are without it."
        )
    for cell, result in results.items():
        if _shares(cell) and _has_other_targets(cell, result):
            said.append(f"{cell.name} was learned with other targets than {cell.needs} has now.")
        made = resume.read_json(cell.folder / RUN)["versions"]
        other = [f"{name} {made.get(name)}" for name, now in folder.versions().items() if made.get(name) != now]
        if other:
            said.append(f"{cell.name} was made with {', '.join(other)}: its last bits may differ here.")
    return said


def _shares(cell: Cell) -> bool:
    """Whether a run took its targets from Scratch's."""
    if cell.needs is None:
        return False
    stored = resume.read_json(cell.folder / RUN)["request"]["target"]
    return isinstance(stored, str) and Path(stored).parts[-2:] == (cell.needs.name, RESULT)


def _has_other_targets(cell: Cell, result: dict[str, Any]) -> bool:
    assert cell.needs is not None
    wanted = {task["name"]: task["val"] for task in resume.read_json(cell.needs / RESULT)["tasks"]}
    return any(task["target"] != wanted[task["name"]] for task in result["tasks"])
