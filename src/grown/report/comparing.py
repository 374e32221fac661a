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
    """Hears the events of a comparison, and writes the page of each run that ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._view: Any = None  # of the run of the moment

    def __call__(self, event: dict[str, Any]) -> None:
        """Print what an event is worth."""
        kind = event["event"]
        about = f"{event['cell']}: " if "cell" in event else ""
        if kind == "cell":
            self.close()
            self._line(f"[{event['number']}/{event['of']}] {about}{self._state(event)}")
            if event["state"] == "done":
                with contextlib.suppress(Exception):  # tried again at the end, and told then
                    page.write(Path(event["folder"]))
        elif kind in NOTES:
            self._line(f"{about}{NOTES[kind].format(**event)}")
        elif kind == "tested":
            self._line(f"  {about}{describe_task(event['row'])}")

    def of_run(self, event: dict[str, Any]) -> None:
        """Show the run of the moment as `grown run` does."""
        if self._view is None:
            self._view = view_for(self._console)
            self._view.__enter__()
        self._view(event)

    def close(self) -> None:
        """Leave the terminal as it was before the run of the moment."""
        if self._view is not None:
            self._view.__exit__(None, None, None)
            self._view = None

    @staticmethod
    def _state(event: dict[str, Any]) -> str:
        words = STATES[event["state"]]
        if event["why"]:
            return f"{words}: {event['why']}"
        if (result := event["result"]) is None:
            return words
        numbers = f"{result['average_accuracy']:.2f}%, {result['bytes_x']:.3f}x, {result['seconds']['total']:.0f} s"
        return f"{words}, {numbers}"

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)
