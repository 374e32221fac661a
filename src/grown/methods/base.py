"""What every method keeps: learn a task, give its network, say how large it is, save and load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from grown.config import Config, Recipe
from grown.data.normalisation import Normalisation
from grown.data.part import Part
from grown.data.task import Task
from grown.errors import TaskError
from grown.io.state import Size, State

Observer = Callable[[dict[str, Any]], None]

PROBE_BATCH = 8


@dataclass(frozen=True)
class StageReport:
    """One training: which, how long, and the held-out accuracy that it ended with.

    A refit learns from the held-out images too, so it has none.
    """

    name: str
    epochs: int
    val: float | None
    seconds: float


@dataclass(frozen=True)
class TaskReport:
    """What learning one task came to."""

    name: str
    classes: tuple[str, ...]
    target: float | None
    val: float
    stages: tuple[StageReport, ...]
    grew: bool
    new_kernels: dict[str, int]  # released, grown
    size: Size
    seconds: float


def stage_reports(recipes: Iterable[Recipe], val: float, share: float) -> tuple[StageReport, ...]:
    """Of the trainings that `Config.recipes` names; `share` are the seconds of an epoch."""
    trainings = zip(("train", "refit"), recipes, (val, None), strict=False)
    return tuple(StageReport(name, recipe.epochs, score, share * recipe.epochs) for name, recipe, score in trainings)


class Method(Protocol):
    """A way to learn a stream of tasks."""

    forgets: ClassVar[bool]  # whether a task's network may change after the task was learned

    def learn(self, task: Task) -> TaskReport: ...

    def network(self, task: str) -> nn.Module: ...

    def networks(self, tasks: Sequence[str], device: str) -> Iterator[nn.Module]: ...  # each on the device

    def normalisation(self, task: str) -> Normalisation: ...

    @property
    def tasks(self) -> list[str]: ...

    def size(self) -> Size: ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


def check_fits(task: Task, known: Iterable[str], input_shape: tuple[int, ...]) -> None:
    """Refuse a task that was learned already, or whose inputs a network does not take."""
    if task.name in known:
        raise TaskError(f"task {task.name!r} was learned already; names are unique")
    if task.input_shape != input_shape:
        raise TaskError(
            f"task {task.name!r}: inputs are {list(task.input_shape)}, but this network takes "
            f"{list(input_shape)} (channels first)"
        )


def probe_input(shape: tuple[int, ...]) -> Tensor:
    """The fixed small batch behind every task's stored probe: noise, not anybody's image."""
    draw = torch.Generator().manual_seed(20211003)
    return torch.randn((PROBE_BATCH, *shape), generator=draw)


@torch.inference_mode()
def probe(network: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """A network's fp32 logits on the fixed batch, on the CPU with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        logits: Tensor = network.cpu().eval()(probe_input(shape))
    finally:
        torch.set_num_threads(threads)
    return logits.float().clone()


def parts_of(task: Task, config: Config) -> tuple[Part, Part]:
    """What trains, and what decides: held-out training images.

    By the paper's protocol it is the benchmark's own validation images, or where it has none the test images.
    """
    if config.protocol == "paper":
        return task.validated(config.seed) or (task.train, task.test)
    return task.hold_out(config.holdout, config.seed)
