"""Tasks and streams of tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from grown.data import cifar100, miniimagenet
from grown.data.digits import digits_stream
from grown.data.folders import PREFIX, Step, Tell, folder_stream
from grown.data.miniimagenet import miniimagenet_stream
from grown.data.normalisation import Normalisation
from grown.data.part import Part
from grown.data.task import Task
from grown.errors import ConfigError, unknown

STREAMS: dict[str, Callable[[str | Path | None], list[Task]]] = {
    "digits": lambda _: digits_stream(),
    "cifar100-superclass": cifar100.superclass_stream,
    "cifar100-split": cifar100.split_stream,
    "miniimagenet-20": miniimagenet_stream,
}
VALIDATED = ("cifar100-split", "miniimagenet-20")  # they have validation images, which decide by the paper's protocol


def stream(name: str, root: str | Path | None = None) -> list[Task]:
    """A benchmark's tasks in their order, by its name; `root` is where its data lies, if it does not ship.

    `folder:PATH` is a folder of one's own images; `folder_stream` and `miniimagenet_stream` have more to choose.
    """
    if name.startswith(PREFIX):
        return folder_stream(name.removeprefix(PREFIX))
    if name not in STREAMS:
        raise unknown("benchmark", name, (*STREAMS, f"{PREFIX}PATH"))
    return STREAMS[name](root)


SETS: dict[str, Callable[[str | Path | None], list[str]]] = {
    "digits": lambda _: ["digits ship with the package: 1797 images of 8 x 8 pixels; stream: digits (seven tasks)"],
    "cifar100": cifar100.describe,
}


def describe(
    name: str,
    root: str | Path | None = None,
    image_size: int | None = None,
    tell: Tell | None = None,
    step: Step | None = None,
) -> list[str]:
    """What of a data set is there, line by line; where it is absent or damaged, an error says what to do."""
    if name == "miniimagenet":
        return miniimagenet.describe(root, image_size, tell, step)
    if name not in SETS:
        raise unknown("data set", name, (*SETS, "miniimagenet"))
    if image_size is not None:
        raise ConfigError(f"--image-size is for miniimagenet, not for {name!r}")
    return SETS[name](root)


__all__ = [
    "STREAMS",
    "VALIDATED",
    "Normalisation",
    "Part",
    "Task",
    "describe",
    "folder_stream",
    "miniimagenet_stream",
    "stream",
]
