"""A comparison while it runs: a line for each run that begins or ends, and what a run of this process tells."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from rich.console import Console

from grown.report import page
from grown.report.progress import NOTES, describe_task, view_for

STATES = {"skipped": "is done already", "begins": "begins", "done": "done", "failed": "failed"}


class ComparisonView:
    """Hears the events of a comparison."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, event: dict[str, Any]) -> None:
        """Print what an event is worth."""
        kind = event["event"]
        about = f"{event['cell']}: " if "cell" in event else ""
        if kind == "cell":
            self._line(f"[{event['number']}/{event['of']}] {about}{self._state(event)}")
            if event["state"] == "done":
                with contextlib.suppress(Exception):  # tried again at the end, and told then
                    page.write(Path(event["folder"]))
        elif kind in NOTES:
            self._line(f"{about}{NOTES[kind].format(**event)}")
        elif kind == "tested":
            self._line(f"  {about}{describe_task(event['row'])}")

    @staticmethod
    def _state(event: dict[str, Any]) -> str:
        words = STATES[event["state"]]
        if event["why"]:
            return f"{words}: {event['why']}"
        if (result := event["result"]) is None:
            return words
        return (
            f"{words}, {result['average_accuracy']:.2f}%, {result['bytes_x']:.3f}x, {result['seconds']['total']:.0f} s"
        )

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


class RunView:
    """Shows the run of the moment as `grown run` does; each run has a view of its own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._view: Any = None

    def __call__(self, event: dict[str, Any]) -> None:
        """Begin a view with a run, end it with the run."""
        if event["event"] == "run":
            self.close()
            self._view = view_for(self._console)
            self._view.__enter__()
        if self._view is not None:
            self._view(event)
        if event["event"] == "done":
            self.close()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._view is not None:
            self._view.__exit__(None, None, None)
            self._view = None
