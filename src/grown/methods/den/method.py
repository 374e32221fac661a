"""One network that grows: units are retrained, added and split; each task sees those that were there in its time."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from grown.data.task import Task
from grown.errors import FileError
from grown.io.fields import Fields
from grown.methods import check
from grown.methods.base import StageReport, TaskReport, parts_of
from grown.methods.den.course import Course
from grown.methods.den.shape import Shape
from grown.methods.plain import plain_groups
from grown.methods.plain_method import PlainRecord
from grown.methods.shared import SharedMethod
from grown.methods.shared.training import Guard, Training, Weights
from grown.nn import limits
from grown.nn.axes import Widths
from grown.nn.bank import as_stored
from grown.nn.graph import Graph


class DEN(SharedMethod):
    """Retrains what a task uses of the network, adds units if that does not do, and splits those that drifted."""

    name: ClassVar[str] = "den"

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._seen: dict[str, Widths] = {}  # by task: the units that were there in its time, a prefix of each group
        self._shape = Shape(graph, self.training.channels)

    # --- learning --------------------------------------------------------------------------------------------------

    def learn(self, task: Task) -> TaskReport:
        """Take the task's course: on a part of the data for its score, then from the same start on all of it."""
        began = time.perf_counter()
        self._check([task])
        config, before = self.config, self._count(self.training.widths) if self._records else 0
        part, held_out = parts_of(task, config)
        deciding, *whole = config.recipes(len(self._records) + 1)
        course = Course(self, task, part, held_out, deciding)
        val = self._settle(course.run(), Guard())
        stages = [*course.stages[:-1], dataclasses.replace(course.stages[-1], val=val)]
        for recipe in whole:
            course = Course(self, task, task.train, held_out, recipe)
            self._settle(course.run(), Guard())
            stages += [StageReport(f"refit-{stage.name}", stage.epochs, None, stage.seconds) for stage in course.stages]
        self._see(task.name, course.widths)
        self._commit(course.training, Guard(), val)
        grown = self._count(course.widths) - before
        new_kernels = {"released": 0, "grown": grown}
        return self._report(task, val, tuple(stages), is_new=grown > 0, began=began, new_kernels=new_kernels)

    def _see(self, task: str, widths: Widths) -> None:
        """A task sees all units there are; those that come later are behind them."""
        self._seen[task] = self.training.widths = widths
        self._kernel_shapes = self._shapes_at(widths)

    def _count(self, widths: Widths) -> int:
        """Kernels of a network of these widths."""
        return sum(math.prod(bank.extent(widths)) for bank in self._shape.banks.values())

    def _groups(self, network: nn.Module) -> list[dict[str, Any]]:
        groups = plain_groups(network)
        learn = [{**group, "params": [value for value in group["params"] if value.requires_grad]} for group in groups]
        return [group for group in learn if group["params"]]

    def _round(self, training: Training, guard: Guard) -> None:  # noqa: ARG002
        for key in self._kernel_shapes:
            kernel = training.network.get_parameter(key)
            kernel.copy_(as_stored(kernel, self.config.kernel_format))

    def _kernels_of(self, task: str) -> Weights:
        """Timestamped inference: the kernels between units that the task saw."""
        found, kernels = {}, self._shape.kernels(self._shared)
        for name, bank in self._shape.banks.items():
            rows, columns = bank.view(self.training.widths, self._seen[task])
            mine = kernels[name][rows[:, None], columns]
            found[f"{name}.weight"] = mine.flatten(1) if self._shared[f"{name}.weight"].ndim == 2 else mine
        return found

    # --- files -----------------------------------------------------------------------------------------------------

    def widths_of(self, task: str) -> Widths:
        """The units that a task sees."""
        return self._seen[task]

    def _entry(self, number: int, name: str, record: PlainRecord) -> dict[str, Any]:
        return {**super()._entry(number, name, record), "widths": list(self._seen[name])}

    def _read_widths(self, tasks: list[Fields], tensors: Mapping[str, Tensor]) -> None:
        """Units are only ever added, and the last task's are all there are."""
        graph, channels = self.training.graph, self.training.channels
        last = channels.template_widths()
        for task in tasks:
            widths = check.read_widths(task, channels)
            if any(now < then for now, then in zip(widths, last, strict=True)):
                raise FileError(f"task {task.text('name')!r} sees fewer units than there were before it")
            self._seen[task.text("name")] = last = widths
        if not tasks:
            return
        stored = tensors["shared/kernels"].numel() if "shared/kernels" in tensors else 0
        if stored != sum(math.prod(counts) for counts in limits.kernel_counts(graph, channels, last)):
            raise FileError(f"shared/kernels holds {stored:,} weights, which does not go with its tasks' widths")
        self._see(tasks[-1].text("name"), last)
