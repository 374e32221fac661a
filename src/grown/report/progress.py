"""A run while it runs: a live view on a terminal, plain lines elsewhere. Both are fed by the run's events."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

NOTES = {"stopping": "{signal}: stopping after this epoch; once more stops at once", "note": "{text}"}
TRAININGS_GUESSED = 3.0  # trainings a task takes, until a task has shown how many


class Clock:
    """Estimates the time left, from the epochs that finished tasks took."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.tasks = 1
        self.done = 0
        self._epochs = 0  # in this task
        self._finished: list[int] = []
        self._planned = 1

    def tell(self, event: dict[str, Any]) -> None:
        """Take one event into account."""
        if event["event"] == "run":
            self.tasks = len(event["tasks"])
        elif event["event"] == "epoch":
            self._epochs += 1
            self._planned = event["epochs"]
        elif event["event"] == "tested":
            self.done += 1
            self._finished.append(self._epochs)
            self._epochs = 0

    def left(self) -> float:
        """Seconds left, by the pace so far."""
        usual = sum(self._finished) / len(self._finished) if self._finished else TRAININGS_GUESSED * self._planned
        spent = sum(self._finished) + self._epochs
        here = max(0.0, usual - self._epochs) if self.done < self.tasks else 0.0
        later = usual * max(0, self.tasks - self.done - 1)
        elapsed = time.perf_counter() - self._began
        return elapsed / spent * (here + later) if spent else 0.0


def describe_task(row: dict[str, Any]) -> str:
    """One finished task in one line."""
    target = f"target {row['target']:.1f}, " if row["target"] is not None else ""
    how = "grew" if row["grew"] else "reused"
    kernels = f"{row['new_kernels']['grown']} grown, {row['new_kernels']['released']} retrained kernels"
    return (
        f"{row['name']}: {target}held-out {row['val']:.1f}, test {row['test']:.1f}; {how} ({kernels}); "
        f"{row['size_x']:.3f}x, {row['bytes']:,} bytes"
    )


class PlainView:
    """A line per stage and task, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = Clock()

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, event: dict[str, Any]) -> None:
        """Print what an event is worth."""
        self._clock.tell(event)
        kind = event["event"]
        if kind == "target":
            self._line(f"  {event['task']}: target {event['target']:.1f} ({event['of']})")
        elif kind in NOTES:
            self._line(NOTES[kind].format(**event))
        elif kind == "settled":
            found = f"held-out {event['val']:.1f}" if event["val"] is not None else "on all data"
            self._line(f"  {event['task']}: {event['stage']}, {found}, {event['took']:.1f} s")
        elif kind == "tested":
            left = f"; about {self._clock.left():.0f} s left" if self._clock.done < self._clock.tasks else ""
            self._line(f"{describe_task(event['row'])}{left}")

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


class LiveView:
    """One row that changes while a task trains; finished tasks stay above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = Clock()
        self._now: dict[str, str] = {}
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, value, trace)

    def __call__(self, event: dict[str, Any]) -> None:
        """Show what an event changes."""
        self._clock.tell(event)
        kind = event["event"]
        if kind == "task":
            self._now = {"task": f"{event['task']} ({event['number']}/{event['of']})"}
        elif kind == "epoch":
            self._now["stage"] = event["stage"]
            self._now["epoch"] = f"{event['epoch']}/{event['epochs']}"
            self._now["held-out"] = f"{event['val']:.1f}%" if "val" in event else ""
            if "size_x" in event:
                self._now["size"] = f"{event['size_x']:.3f}x"
        elif kind in NOTES:
            self._console.print(NOTES[kind].format(**event), markup=False, highlight=False)
        elif kind == "tested":
            self._console.print(describe_task(event["row"]), markup=False, highlight=False)
        self._now["time left"] = f"{self._clock.left():.0f} s"
        self._live.update(self._table())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        columns = ("task", "stage", "epoch", "held-out", "size", "time left")
        for column in columns:
            table.add_column(column, style="bold" if column == "task" else "")
        table.add_row(*(self._now.get(column, "") for column in columns))
        return table


def view_for(console: Console) -> PlainView | LiveView:
    """The view that fits where the output goes."""
    return LiveView(console) if console.is_terminal else PlainView(console)
