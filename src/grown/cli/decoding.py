"""What is said and shown while image files are decoded: a bar on a terminal, lines everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from grown.data.folders import Step, Tell


@contextmanager
def decoding(console: Console) -> Iterator[tuple[Tell, Step | None]]:
    """Where lines go, and where each task's count of decoded images goes, if anybody looks."""

    def tell(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False, highlight=False)

    if not console.is_terminal:
        yield tell, None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bars = {}

        def step(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(f"decoding {escape(name)}", total=total)
            progress.update(bars[name], completed=done)

        yield tell, step
