"""One network that is trained on and on: what sequential training and its protected forms have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown import seeds
from grown.data.normalisation import measure
from grown.data.task import Task
from grown.errors import unknown
from grown.io import flat
from grown.io.fields import Fields
from grown.io.state import State
from grown.methods import check
from grown.methods.base import StageReport, TaskReport, parts_of, probe, stage_reports
from grown.methods.plain import plain_groups
from grown.methods.plain_method import PlainMethod
from grown.methods.shared.training import ASIDE, Guard, Training, Weights
from grown.nn.axes import Widths
from grown.nn.bank import FORMATS, as_stored
from grown.nn.graph import Graph
from grown.nn.plain import build, divide, fill, own_shapes, simplest
from grown.train.batches import Batches
from grown.train.evaluate import evaluate
from grown.train.lanes import fit_together
from grown.train.statistics import estimate_statistics
from grown.train.steps import Epoch, Work
from grown.train.turns import TurnedHead

Shapes = dict[str, torch.Size]


class SharedMethod(PlainMethod):
    """One 1x network for all tasks. Kernels are shared; norms, biases and heads are each task's own.

    A method says with `_guard` what protects earlier tasks while a new one trains, and with `_remember` what it keeps
    of a task that was learned.
    """

    forgets: ClassVar[bool] = True
    layout: ClassVar[str] = "all in one network"

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._kernel_shapes = self._shapes_at(self.training.widths)
        self._shared: Weights = {}  # the kernels as the last task left them
        self._own: dict[str, Weights] = {}  # by task: norms, biases, head

    def _shapes_at(self, widths: Widths) -> Shapes:
        """The kernels of a network of these widths."""
        graph = self.training.graph
        plain = build(graph, self.training.channels, widths, 1).state_dict()
        return {key: plain[key].shape for key in (f"{node.name}.weight" for node in graph.banked())}

    # --- what a method adds ----------------------------------------------------------------------------------------

    def _guard(self, training: Training) -> Guard:  # noqa: ARG002
        """What protects the earlier tasks in this training."""
        return Guard()

    def _groups(self, network: nn.Module) -> list[dict[str, Any]]:
        """The parameters that learn, by kind."""
        return plain_groups(network)

    def _trained_kernels(self, network: nn.Module) -> dict[str, nn.Parameter]:
        """What of a network that begins to train is no task's own, by its names there."""
        return {key: network.get_parameter(key) for key in self._kernel_shapes}

    def _round(self, training: Training, guard: Guard) -> None:  # noqa: ARG002
        """Give the network the kernels that a file gives back."""
        for kernel in training.kernels.values():
            kernel.copy_(as_stored(kernel, self.config.kernel_format))

    def _remember(self, training: Training, guard: Guard) -> None:
        """Keep what later trainings will need; the training's network is in evaluation, on its device."""

    def _share(self, training: Training, guard: Guard, kernels: Weights) -> None:  # noqa: ARG002
        """The kernels as they were trained are every task's from now on."""
        self._shared = kernels

    def _makes_kernels(self) -> bool:
        """Whether the next task gets kernels of its own."""
        return not self._records

    def _kernels_of(self, task: str) -> Weights:  # noqa: ARG002
        """The kernels as a task uses them now."""
        return self._shared

    def _kept(self) -> dict[str, Tensor]:
        """What `_remember` kept, as tensors of the file."""
        return {}

    def _kept_shapes(self, tasks: list[Fields]) -> dict[str, tuple[Any, ...]]:  # noqa: ARG002
        """Which tensors these are in a file with these tasks: type and shape, None for any length."""
        return {}

    def _load_kept(self, tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:
        """Take them out of a file."""

    def _bank(self) -> dict[str, Tensor]:
        """The kernels as tensors of the file."""
        kernels = flat.flatten(self._shared, self._kernel_shapes)
        return {"shared/kernels": kernels.to(FORMATS[self.config.kernel_format])}

    def _bank_shapes(self) -> dict[str, tuple[Any, ...]]:
        """Which tensors these are, as `_kept_shapes` says it."""
        return {"shared/kernels": (check.KERNEL_TYPES, None)}

    def _load_bank(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the kernels out of a file."""
        self._shared = flat.split("shared/kernels", tensors["shared/kernels"].float(), self._kernel_shapes)

    def _read_widths(self, tasks: list[Fields], tensors: Mapping[str, Tensor]) -> None:
        """Find how wide tasks' networks are in a file, before anything else is read of it."""

    # --- learning --------------------------------------------------------------------------------------------------

    def learn(self, task: Task) -> TaskReport:
        """Train the shared network on: on a part of the data for its score, then from the same start on all of it."""
        began = time.perf_counter()
        self._check([task])
        is_new = self._makes_kernels()
        trainings = self._trainings(task)
        guards = [self._guard(training) for training in trainings]
        self._fit(trainings, guards)
        val, *_ = [self._settle(*pair) for pair in zip(trainings, guards, strict=True)]
        stages = self._stages(trainings, val, time.perf_counter() - began)
        self._commit(trainings[-1], guards[-1], val)
        return self._report(task, val, stages, is_new=is_new, began=began)

    def _stages(self, trainings: list[Training], val: float, seconds: float) -> tuple[StageReport, ...]:
        """The trainings by their names; each has its epochs' share of the seconds."""
        recipes = [training.recipe for training in trainings]
        return stage_reports(recipes, val, seconds / sum(recipe.epochs for recipe in recipes))

    def _trainings(self, task: Task) -> list[Training]:
        config = self.config
        part, held_out = parts_of(task, config)
        trainings = []
        for images, recipe in zip((part, task.train), config.recipes(len(self._records) + 1), strict=False):
            normalise = measure(images)
            network = self._begin(task).to(config.device).train().requires_grad_(True)
            batches = Batches(images, normalise, recipe, config.device, config.seed, task.name, "plain")
            kernels = self._trained_kernels(network)
            start = {key: kernel.detach().clone() for key, kernel in kernels.items()}
            trainings.append(Training(task, images, held_out, normalise, recipe, network, batches, kernels, start))
        return trainings

    def _begin(self, task: Task) -> nn.Module:
        """The network as the last task left it, with a new head; drawn afresh for the first."""
        return self._copied(task, next(reversed(self._own), None))

    def _copied(self, task: Task, parent: str | None) -> nn.Module:
        """The shared kernels with an earlier task's norms and biases and a new head."""
        network = self.training.fresh(task, self._seed(task))
        if parent is not None:
            head, own = f"{self.training.graph.head.name}.", self._own[parent]
            state = {key: value for key, value in own.items() if not key.startswith(head)}
            network.load_state_dict({**self._shared, **state}, strict=False)
        return network

    def _seed(self, task: Task) -> int:
        return seeds.derive(self.config.seed, "plain", task.name)

    def _fit(self, trainings: list[Training], guards: list[Guard]) -> None:
        heads, works = [], []
        for training, guard in zip(trainings, guards, strict=True):
            network, task = training.network, training.task
            if training.recipe.turns:
                draw = seeds.generator(self.config.seed, "turns", task.name)
                heads.append(TurnedHead(network, self.training.graph.head.name, draw))
            if guard.aside is not None:
                network.add_module(ASIDE, guard.aside)
            works.append(
                Work(
                    network,
                    self._groups(network),
                    training.batches,
                    training.recipe,
                    self._seed(task),
                    penalty=guard.penalty,
                    after_epoch=self._teller(task.name),
                    beside=guard.beside,
                    extra_loss=guard.extra_loss,
                    around_update=guard.around_update,
                )
            )
        fit_together(works, self.config.lanes)
        for head in heads:
            head.undo()
        for training, guard in zip(trainings, guards, strict=True):
            if guard.aside is not None:
                delattr(training.network, ASIDE)

    def _teller(self, task: str) -> Callable[[Epoch], None]:
        def after_epoch(epoch: Epoch) -> None:
            event = {"event": "epoch", "task": task, "stage": self.name, "round": 0}
            self._emit({**event, "epoch": epoch.number, "epochs": epoch.epochs, "loss": epoch.loss})

        return after_epoch

    def _settle(self, training: Training, guard: Guard) -> float:
        """Kernels as a file has them, then norm statistics; returns the held-out accuracy."""
        network, config = training.network, self.config
        with torch.no_grad():
            self._round(training, guard)
        estimate_statistics(network, training.batches.inputs(epochs=2))
        network.eval().requires_grad_(False)
        return evaluate(network, training.held_out, training.normalise, config.device).accuracy

    def _commit(self, training: Training, guard: Guard, val: float) -> None:
        """The task is learned. Where that changed what earlier ones compute, their probes are others."""
        task = training.task
        self._remember(training, guard)
        state = {key: value.cpu().contiguous() for key, value in training.network.state_dict().items()}
        self._share(training, guard, {key: state[key] for key in self._kernel_shapes})
        own = self._own_shapes(task.name, task.classes)
        self._own[task.name] = {key: state[key] for part in own.values() for key in part}
        self._records[task.name] = (task.classes, training.normalise, torch.empty(0), val)
        for name in list(self._records) if self.forgets else [task.name]:
            classes, normalise, _, score = self._records[name]
            logits = probe(self.network(name), self.training.graph.input_shape)
            self._records[name] = (classes, normalise, logits, score)
            self._arithmetic.pop(name, None)

    def _own_shapes(self, task: str, classes: tuple[str, ...]) -> dict[str, Shapes]:
        """What is a task's own, in "own" and "head"."""
        graph, channels = self.training.graph, self.training.channels
        return divide(graph, own_shapes(graph, channels, self.widths_of(task), len(classes)))

    def network(self, task: str) -> nn.Module:
        """A task's network as it is now, as a plain module of its own."""
        if task not in self._records:
            raise unknown("task", task, self._records)
        training, classes = self.training, len(self._records[task][0])
        plain = build(training.graph, training.channels, self.widths_of(task), classes)
        return simplest(fill(plain, {**self._kernels_of(task), **self._own[task]}))

    # --- files -----------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The kernels once, each task's own parts, and what the method keeps."""
        tensors, tasks = {}, []
        if self._records:
            tensors = {**self._bank(), **self._kept()}
        for number, (name, record) in enumerate(self._records.items(), start=1):
            for part, keys in self._own_shapes(name, record[0]).items():
                tensors[f"task/{number}/{part}"] = flat.flatten(self._own[name], keys)
            tensors[f"task/{number}/probe"] = record[2]
            tasks.append(self._entry(number, name, record))
        return State(tensors, {**self._about(), "tasks": tasks})

    def _load_tasks(self, meta: Fields, tensors: dict[str, Tensor]) -> None:
        tasks = check.read_tasks(meta.items("tasks"), len(self.training.graph.nodes), check.stored_bytes(tensors))
        self._read_widths(tasks, tensors)
        expected = {**self._bank_shapes(), **self._kept_shapes(tasks)} if tasks else {}
        check.check_shared(tensors, tasks, expected)
        if not tasks:
            return
        for number, entry in enumerate(tasks, start=1):
            name, prefix = entry.text("name"), f"task/{number}/"
            record = self._records[name] = self._record(entry, tensors[prefix + "probe"])
            self._own[name] = {}
            for part, keys in self._own_shapes(name, record[0]).items():
                self._own[name] |= flat.split(prefix + part, tensors[prefix + part], keys)
        self._load_kept(tensors, tasks)
        self._load_bank(tensors)
