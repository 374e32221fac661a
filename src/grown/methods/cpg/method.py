"""CPG as a method: one network whose weights each belong to one task, and which later tasks pick from."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown import seeds
from grown.data.task import Task
from grown.errors import TaskError, unknown
from grown.io.fields import Fields
from grown.io.state import Size, State
from grown.methods.base import TaskReport, probe
from grown.methods.cpg import algorithm, files, schedule
from grown.methods.cpg.draft import Draft, inherit
from grown.methods.cpg.elements import MOST_TASKS, Elements
from grown.methods.cpg.files import Kept
from grown.methods.cpg.stages import Settled, Stages
from grown.methods.grown.target import Targets
from grown.methods.plain_method import PlainMethod, PlainRecord
from grown.nn import bits
from grown.nn.axes import Widths
from grown.nn.graph import Graph
from grown.nn.groups import find_channels
from grown.nn.plain import build, fill, own_shapes, simplest


class CPG(PlainMethod):
    """Compacting, picking and growing (Hung and others, 2019).

    `foresee(tasks)` says how many tasks there will be, so that each leaves room for the others once the network cannot
    grow any more.
    """

    name: ClassVar[str] = "cpg"
    layout: ClassVar[str] = "all in one network"
    _foreseen: int | None = None

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self.training.channels = find_channels(graph, self.config.width_multiple)
        self.elements = Elements(graph, self.training.channels)
        self._kept: dict[str, Kept] = {}
        self.targets = Targets(self)

    # --- as its targets see it -------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The traced template."""
        return self.training.graph

    @property
    def gains(self) -> dict[str, float]:
        """How each layer's weights are drawn."""
        return self.training.gains

    @property
    def records(self) -> dict[str, PlainRecord]:
        """The tasks learned so far."""
        return self._records

    def emit(self, event: str, **details: Any) -> None:
        """Tell the observer, if there is one."""
        self._emit({"event": event, **details})

    def keep_targets(self, folder: Path) -> None:
        """Write the networks that only the target is measured with, where later tasks need them."""
        self.targets.keep(folder)

    def resume_targets(self, folder: Path) -> None:
        """Have them again."""
        self.targets.resume(folder)

    # --- learning --------------------------------------------------------------------------------------------------

    def foresee(self, tasks: Sequence[Task]) -> None:
        """Name all tasks, those learned already too; only their number counts."""
        self._foreseen = len({*self._records, *(task.name for task in tasks)})

    def left(self) -> int:
        """Tasks still to be learned, the next one among them; if nobody says how many, two."""
        total = self.config.cpg_tasks if self.config.cpg_tasks is not None else self._foreseen
        return 2 if total is None else max(1, total - len(self._records))

    def learn(self, task: Task) -> TaskReport:
        """Pick from what is there and train what is free, grow if the goal is missed, compact, retrain."""
        began = time.perf_counter()
        self._check([task])
        if len(self._records) == MOST_TASKS:
            raise TaskError(f"task {task.name!r}: cpg learns at most {MOST_TASKS} tasks in one network")
        stages = Stages(self, task)
        target = self.targets.of(stages.opened)
        settled = algorithm.learn(self, stages, target, self.left())
        before = self.elements.widths
        counts = self._commit(stages, settled)
        return self._report(
            task,
            settled.val,
            tuple(stages.reports),
            is_new=settled.draft.widths != before,
            began=began,
            target=target,
            new_kernels=counts,
        )

    def widening_plan(self) -> list[Widths]:
        """The widths now, and those that this task may widen to."""
        return schedule.widening_plan(self.elements, self.config, self.base_parameters)

    def open(self, task: Task, widths: Widths) -> Draft:
        """A task's network before it trains: every earlier weight is picked, norms and biases are the last task's.

        Weights of new channels are drawn; what pruning set free starts at 0, where pruning left it.
        """
        graph, training = self.graph, self.training
        fresh = training.fresh(task, seeds.derive(self.config.seed, "plain", task.name), widths).state_dict()
        values, earlier = {}, {}
        for name in self.elements.banks:
            drawn = fresh[f"{name}.weight"].view(self.elements.shape(name, widths))
            stored, owners = self.elements.spread(name, widths)
            earlier[name] = owners > 0
            values[name] = torch.where(self._is_new(name, widths), drawn, stored)
        keys = own_shapes(graph, training.channels, widths, len(task.classes))
        rest = {key: fresh[key] for key in keys}
        if self._kept:
            last = next(reversed(self._kept.values()))
            rest = inherit(graph, training.channels, rest, widths, last.rest, last.widths)
        own = {name: ~flags for name, flags in earlier.items()}
        return Draft(widths, values, earlier, dict(earlier), own, rest).to(self.config.device)

    def _is_new(self, name: str, widths: Widths) -> Tensor:
        """Which weights of a layer come with channels that are not there yet."""
        rows, columns = self.elements.banks[name].view(widths, self.elements.widths)
        is_new = torch.ones(self.elements.shape(name, widths), dtype=torch.bool)
        is_new[rows[:, None], columns] = False
        return is_new

    def _commit(self, stages: Stages, settled: Settled) -> dict[str, int]:
        """Give the task's own weights their owner, keep what it picked; returns how many it came to own."""
        task, draft = stages.opened.task, settled.draft.to("cpu")
        number = len(self._records) + 1
        counts = {"released": 0, "grown": 0}
        new = {name: self._is_new(name, draft.widths) for name in self.elements.banks}
        self.elements.grow(draft.widths)
        for name, own in draft.own.items():
            self.elements.claim(name, draft.effective(name, self.config.kernel_format), own, number)
            counts["grown"] += int((own & new[name]).sum())
            counts["released"] += int((own & ~new[name]).sum())
        picked = [draft.picked[name][draft.earlier[name]] for name in self.elements.banks]
        rest = {key: value.contiguous() for key, value in draft.rest.items()}
        self._kept[task.name] = Kept(draft.widths, bits.pack(torch.cat(picked)), rest)
        self._records[task.name] = (task.classes, stages.opened.normalise, torch.empty(0), settled.val)
        logits = probe(self.network(task.name), self.graph.input_shape)
        self._records[task.name] = (task.classes, stages.opened.normalise, logits, settled.val)
        return counts

    # --- using -----------------------------------------------------------------------------------------------------

    def network(self, task: str) -> nn.Module:
        """A task's network, as a plain module of its own."""
        return next(self.networks([task], "cpu"))

    def networks(self, tasks: Sequence[str], device: str) -> Iterator[nn.Module]:
        """These tasks' networks one after another, each put together on the device: the same bits, in less time."""
        elements, graph = self.elements.on(device), self.graph
        for task in tasks:
            if task not in self._records:
                raise unknown("task", task, self._records)
            kept, weights = self._kept[task], {}
            for name, (values, used) in self.used(task, elements).items():
                weight = values * used
                weights[f"{name}.weight"] = weight.flatten(1) if graph[name].op == "linear" else weight
            plain = build(graph, self.training.channels, kept.widths, len(self._records[task][0]))
            yield simplest(fill(plain, {**kept.rest, **weights}, device))

    def used(self, task: str, elements: Elements | None = None) -> dict[str, tuple[Tensor, Tensor]]:
        """By layer, the weights that a task sees and which of them it uses: its own, and those that it picked."""
        elements = self.elements if elements is None else elements
        kept, number = self._kept[task], list(self._records).index(task) + 1
        seen = {name: elements.seen(name, kept.widths) for name in elements.banks}
        earlier = {name: (owners > 0) & (owners < number) for name, (_, owners) in seen.items()}
        counts = [int(flags.sum()) for flags in earlier.values()]
        picked = torch.split(bits.unpack(kept.picked, sum(counts)), counts)
        found = {}
        for (name, (values, owners)), flags in zip(seen.items(), picked, strict=True):
            use = (owners == number).masked_scatter_(earlier[name], flags.to(owners.device))
            found[name] = (values, use)
        return found

    def widths_of(self, task: str) -> Widths:
        """How wide a task's network is."""
        return self._kept[task].widths

    def size(self) -> Size:
        """As CPG counts: all weights of the network as wide as it is now, also those that nobody owns yet."""
        size, count = super().size(), self.elements.count(self.elements.widths)
        parameters = {**size.parameters, "kernels": count}
        parameters["total"] += count - size.parameters["kernels"]
        return dataclasses.replace(size, parameters=parameters)

    # --- files -----------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The weights that have an owner, and what each task picked and has of its own."""
        tensors = files.elements_to_tensors(self.elements, self.config.kernel_format) if self._records else {}
        tasks = []
        for number, (name, record) in enumerate(self._records.items(), start=1):
            kept = self._kept[name]
            own = files.rest_to_tensors(self.graph, self.training.channels, kept, len(record[0]))
            tensors |= {f"task/{number}/{part}": tensor for part, tensor in own.items()}
            tensors[f"task/{number}/probe"] = record[2]
            tasks.append({**self._entry(number, name, record), "widths": list(kept.widths)})
        return State(tensors, {**self._about(), "tasks": tasks})

    def _load_tasks(self, meta: Fields, tensors: dict[str, Tensor]) -> None:
        tasks = files.read_tasks(meta, tensors, self.graph, self.elements)
        for entry in tasks:
            name = entry.text("name")
            self._records[name] = self._record(entry, tensors[f"task/{entry.whole('number')}/probe"])
        self._kept = files.read_kept(tasks, tensors, self.graph, self.elements)
