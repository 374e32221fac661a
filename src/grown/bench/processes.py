"""Several cells at once on one machine, a process each; a process that dies takes no other with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, Self

from grown.bench.cells import Ending, attempt
from grown.bench.grid import Cell
from grown.methods.base import Observer

TOLD = ("tested", "note")  # what is heard of a cell while it runs
PATIENCE = 10.0  # seconds for a process without work to end


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    cell: Cell | None = None


class Processes:
    """So many processes, each with one cell at a time; they share a GPU, if that is the device."""

    elsewhere = False

    def __init__(self, count: int, observer: Observer) -> None:
        self.room = count
        self.is_stopping = False
        self._observer = observer
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End every process: those that still work are killed, since what they did is kept as it goes."""
        for worker in self._workers:
            worker.pipe.close()
            if worker.cell is not None:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._workers.clear()

    def start(self, cell: Cell) -> None:
        """Give a cell to a process that has none."""
        worker = next((worker for worker in self._workers if worker.cell is None), None) or self._hire()
        worker.cell = cell
        worker.pipe.send(cell)

    def _hire(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,), daemon=True)
        # What is ignored here is ignored there from the first moment on: a terminal's Ctrl-C is this process's matter.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        there.close()
        worker = _Worker(process, here)
        self._workers.append(worker)
        return worker

    def wait(self) -> tuple[Cell, Ending]:
        """Until a cell has ended, or its process."""
        while True:
            busy = {worker.pipe: worker for worker in self._workers if worker.cell is not None}
            for pipe in connection.wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                assert worker.cell is not None
                cell = worker.cell
                try:
                    told = worker.pipe.recv()
                except (EOFError, OSError):
                    return cell, self._bury(worker)
                if isinstance(told, Ending):
                    worker.cell = None
                    return cell, told
                self._observer({**told, "cell": cell.name})

    def _bury(self, worker: _Worker) -> Ending:
        worker.process.join()
        code = worker.process.exitcode
        self._workers.remove(worker)
        worker.pipe.close()
        if self.is_stopping:
            return Ending("stopped", "stopped")
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return Ending("failed", f"its process was ended {how}")

    def stop_soon(self) -> None:
        """Ask every cell to stop after its epoch."""
        self.is_stopping = True
        for worker in self._workers:
            if worker.cell is not None and worker.process.is_alive():
                os.kill(worker.process.pid, signal.SIGTERM)


def _serve(pipe: Connection) -> None:
    """One process's work."""
    os.setpgid(0, 0)  # out of reach of what a terminal sends to all processes at once
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def observe(event: dict[str, Any]) -> None:
        if event["event"] in TOLD:
            pipe.send(event)

    while True:
        try:
            cell = pipe.recv()
        except EOFError:
            return
        pipe.send(attempt(cell, observe))


def _end_with_parent() -> None:
    """A process whose parent was killed ends too; what it did is kept as after any kill."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
