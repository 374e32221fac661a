"""One task's training on top of the shared kernels, and what a method adds to it so as not to forget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor, nn

from grown.config import Recipe
from grown.data.normalisation import Normalisation
from grown.data.part import Part
from grown.data.task import Task
from grown.train.batches import Batch, Batches

Weights = dict[str, Tensor]  # by their names in a plain network

ASIDE = "+aside"  # no module of a template can have this name


@dataclass(frozen=True)
class Training:
    """A part of a task, and the network that learns it: shared kernels, norms, biases and a head of its own."""

    task: Task
    part: Part
    held_out: Part
    normalise: Normalisation
    recipe: Recipe
    network: nn.Module  # on its device
    batches: Batches
    kernels: dict[str, nn.Parameter]  # of the network, as they change
    start: Weights  # the same as they were: where the task before this one left them


@dataclass(frozen=True)
class Guard:
    """What a training has beside cross-entropy; the fields are those of `Work`."""

    penalty: Callable[[], Tensor] | None = None
    beside: tuple[Batches, ...] = ()
    extra_loss: Callable[[Batch, Sequence[Batch]], Tensor] | None = None
    around_update: Callable[[], AbstractContextManager[None]] | None = None
    aside: nn.Module | None = None  # trained and kept together with the network, though no part of it
