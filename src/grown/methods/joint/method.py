"""One plain network with one head over all classes, trained on the union of all tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from grown.config import Recipe
from grown.data.normalisation import measure
from grown.data.part import Part
from grown.data.task import Task
from grown.errors import ConfigError, TaskError, unknown
from grown.io import flat
from grown.io.fields import Fields
from grown.io.state import State
from grown.methods import check
from grown.methods.base import TaskReport, check_fits, parts_of, probe, stage_reports
from grown.methods.joint.union import Union, rows_of
from grown.methods.plain import PlainJob
from grown.methods.plain_method import PlainMethod, PlainRecord
from grown.nn.bank import FORMATS
from grown.nn.graph import Graph
from grown.nn.plain import build, divide, fill, own_shapes, simplest
from grown.train.evaluate import evaluate

Shapes = dict[str, dict[str, torch.Size]]
Weights = dict[str, Tensor]


class Joint(PlainMethod):
    """All tasks at once, by one 1x network: an upper reference, not continual.

    `foresee(tasks)` names all tasks, the first `learn` trains them together, later ones only report. A task's network
    is the trained one with the head's rows of its own classes. Whoever foresees more tasks later has all trained anew.
    """

    name: ClassVar[str] = "joint"
    layout: ClassVar[str] = "all in one network"

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._foreseen: dict[str, Task] = {}
        self._all: dict[str, PlainRecord] = {}  # in the order of the head's rows; those learned are in _records too
        self._whole: Weights = {}  # the network, with all of its head

    def foresee(self, tasks: Sequence[Task]) -> None:
        """Name all tasks, those learned already too; nothing is trained yet."""
        if not tasks:
            raise ConfigError("joint trains all tasks at once, but no task is foreseen")
        if self._template is not None:
            self._read(self._template, tasks[0].input_shape)
        foreseen: dict[str, Task] = {}
        for task in tasks:
            if task.name in foreseen:
                raise TaskError(f"task {task.name!r} is foreseen twice; names are unique")
            check_fits(task, (), self.training.graph.input_shape)
            foreseen[task.name] = task
        if missing := [name for name in self._records if name not in foreseen]:
            raise ConfigError(
                f"task {missing[0]!r} was learned, but is not among the tasks that are foreseen; "
                "joint trains all tasks at once, so name it too"
            )
        self._foreseen = foreseen

    def learn(self, task: Task) -> TaskReport:
        """Train all foreseen tasks, unless that was done; report this one."""
        began = time.perf_counter()
        self._refuse(task)
        train = task.name not in self._all
        if train:
            self._train_all(task.name)
        recipes = self._recipes()
        spent = (time.perf_counter() - began) / sum(recipe.epochs for recipe in recipes) if train else 0.0  # an epoch
        record = self._records[task.name] = self._all[task.name]
        val = record[3]
        return self._report(task, val, stage_reports(recipes, val, spent), is_new=train, began=began)

    def _refuse(self, task: Task) -> None:
        """Refuse a task that does not fit, or that was not foreseen as it is."""
        classes = None
        if self._template is None:
            check_fits(task, self._records, self.training.graph.input_shape)
            if task.name in self._all:
                classes = self._all[task.name][0]
            elif task.name in self._foreseen:
                classes = self._foreseen[task.name].classes
        if classes is None:
            raise ConfigError(
                f"task {task.name!r} was not foreseen; joint trains all tasks at once: "
                "call foresee(tasks) with all of them before learn(task)"
            )
        if classes != task.classes:
            raise TaskError(
                f"task {task.name!r} has classes {list(task.classes)}, but was foreseen with {list(classes)}"
            )

    def is_trained(self, task: str) -> bool:
        """All are, once one of them was learned."""
        return task in self._all

    def _recipes(self) -> list[Recipe]:
        """Of the trainings: on a part of the data for the tasks' scores, then on all of it. No task is an early one."""
        return self.config.replace(early=0).recipes(1)

    def _train_all(self, asked: str) -> None:
        """Train every foreseen task, and score each on its own held-out images."""
        config, union = self.config, Union(self.name, tuple(self._foreseen.values()))
        self.training.observer = lambda event: self._emit({**event, "task": asked, "stage": self.name})
        parts, held_out = zip(*(parts_of(task, config) for task in union.tasks), strict=True)
        held = union.join(held_out)
        images = (parts, [task.train for task in union.tasks])
        jobs = [_job(union, union.join(p), held, recipe) for p, recipe in zip(images, self._recipes(), strict=False)]
        trained = [result.network.state_dict() for result in self.training.train_together(jobs)]
        rows, shape = union.rows(), self.training.graph.input_shape
        found: dict[str, PlainRecord] = {}
        for task, mine in zip(union.tasks, held_out, strict=True):
            decided = self._cut(trained[0], rows[task.name]).to(config.device)
            val = evaluate(decided, mine, jobs[0].normalise, config.device).accuracy
            logits = probe(self._cut(trained[-1], rows[task.name]), shape)
            found[task.name] = (task.classes, jobs[-1].normalise, logits, val)
        self._whole, self._all, self._arithmetic = trained[-1], found, {}
        self._records = {name: found[name] for name in self._records}

    def _cut(self, whole: Weights, rows: slice) -> nn.Module:
        """The network with these rows of its head alone."""
        training, head = self.training, f"{self.training.graph.head.name}."
        plain = build(training.graph, training.channels, training.widths, rows.stop - rows.start)
        mine = {key: value[rows] if key.startswith(head) else value for key, value in whole.items()}
        return simplest(fill(plain, mine))

    def _rows(self) -> dict[str, slice]:
        return rows_of({name: record[0] for name, record in self._all.items()})

    def network(self, task: str) -> nn.Module:
        """A task's network, as a plain module of its own."""
        if task not in self._records:
            raise unknown("task", task, self._records)
        return self._cut(self._whole, self._rows()[task])

    def state(self) -> State:
        """The one network, and each task's part of its head."""
        tensors, entries = {}, {}
        shared, heads = self._shapes()
        if self._all:
            stored = FORMATS[self.config.kernel_format]
            tensors["joint/kernels"] = flat.flatten(self._whole, shared["kernels"]).to(stored)
            tensors["joint/own"] = flat.flatten(self._whole, shared["own"])
        for number, (name, rows) in enumerate(self._rows().items(), start=1):
            head = {key: self._whole[key][rows] for key in heads[name]}
            tensors[f"task/{number}/head"] = flat.flatten(head, heads[name])
            tensors[f"task/{number}/probe"] = self._all[name][2]
            entries[name] = self._entry(number, name, self._all[name])
        tasks = [entries.pop(name) for name in self._records]
        return State(tensors, {**self._about(), "tasks": tasks, "ahead": list(entries.values())})

    def _load_tasks(self, meta: Fields, tensors: dict[str, Tensor]) -> None:
        learned = [Fields(entry, "a task") for entry in meta.items("tasks")]
        every = [*meta.items("tasks"), *meta.items("ahead")]
        every.sort(key=lambda entry: Fields(entry, "a task").whole("number"))
        entries = check.read_tasks(every, len(self.training.graph.nodes), check.stored_bytes(tensors))
        check.check_joint(tensors, entries)
        for entry in entries:
            self._all[entry.text("name")] = self._record(entry, tensors[f"task/{entry.whole('number')}/probe"])
        self._records = {entry.text("name"): self._all[entry.text("name")] for entry in learned}
        if not entries:
            return
        shared, heads = self._shapes()
        self._whole = {
            key: value
            for part, keys in shared.items()
            for key, value in flat.split(f"joint/{part}", tensors[f"joint/{part}"].float(), keys).items()
        }
        own = [
            flat.split(f"task/{number}/head", tensors[f"task/{number}/head"], keys)
            for number, keys in enumerate(heads.values(), start=1)
        ]
        self._whole |= {key: torch.cat([head[key] for head in own]) for key in own[0]}

    def _shapes(self) -> tuple[Shapes, Shapes]:
        """Names and shapes of what is stored once (kernels, own), and of each task's head."""
        training, graph = self.training, self.training.graph
        counts = {name: len(record[0]) for name, record in self._all.items()}
        parts = {
            name: divide(graph, own_shapes(graph, training.channels, training.widths, count))
            for name, count in counts.items()
        }
        if not parts:
            return {}, {}
        plain = build(graph, training.channels, training.widths, 1).state_dict()
        kernels = {f"{node.name}.weight": plain[f"{node.name}.weight"].shape for node in graph.banked()}
        shared = {"kernels": kernels, "own": next(iter(parts.values()))["own"]}
        return shared, {name: part["head"] for name, part in parts.items()}


def _job(union: Union, part: Part, held_out: Part, recipe: Recipe) -> PlainJob:
    return PlainJob(union, part, held_out, measure(part), recipe)
