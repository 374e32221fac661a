"""Tasks and streams of tasks."""

from __future__ import annotations

from collections.abc import Callable

from grown.data.digits import digits_stream
from grown.data.task import Normalisation, Part, Task
from grown.errors import unknown

STREAMS: dict[str, Callable[[], list[Task]]] = {"digits": digits_stream}


def stream(name: str) -> list[Task]:
    """A benchmark's tasks in their order, by its name."""
    if name not in STREAMS:
        raise unknown("benchmark", name, STREAMS)
    return STREAMS[name]()


__all__ = ["STREAMS", "Normalisation", "Part", "Task", "stream"]
