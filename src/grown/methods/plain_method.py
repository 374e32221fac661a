"""A plain network per task: what Scratch and Fine-tune have in common."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown.config import Config
from grown.data.normalisation import Normalisation, measure
from grown.data.task import Task
from grown.errors import FileError, GrownError, unknown
from grown.growth.budget import parameters
from grown.io import arithmetic, container, flat
from grown.io.fields import Fields, first_line
from grown.io.size import measure as measure_size
from grown.io.state import Size, State
from grown.methods import check
from grown.methods.base import Observer, StageReport, TaskReport, check_fits, parts_of, probe, stage_reports
from grown.methods.plain import PlainJob, PlainTraining
from grown.nn import limits, trace
from grown.nn.axes import Widths
from grown.nn.bank import FORMATS, make_banks
from grown.nn.graph import Graph
from grown.nn.initial import measure_gains
from grown.nn.plain import build, divide, fill, own_shapes, simplest

PlainRecord = tuple[tuple[str, ...], Normalisation, Tensor, float]  # classes, normalisation, probe, held-out accuracy


@dataclass(frozen=True)
class Trained:
    """What a training leaves beside its network. Seconds are a share of those of all that trained side by side."""

    normalise: Normalisation
    val: float
    stages: tuple[StageReport, ...]


class PlainMethod:
    """Keeps one network of the template's widths for each task; nothing is shared, so nothing is forgotten."""

    name: ClassVar[str]
    forgets: ClassVar[bool] = False
    layout: ClassVar[str] = "each with a network of its own"
    training: PlainTraining
    base_parameters: int

    def __init__(
        self,
        template: nn.Module | None,
        config: Config | None = None,
        *,
        input_shape: tuple[int, ...] | None = None,
        base_parameters: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.config = config if config is not None else Config()
        self.observer = observer
        self._template = template
        self._given_base = base_parameters
        self._records: dict[str, PlainRecord] = {}
        self._stored: dict[str, dict[str, Tensor]] = {}  # a task's tensors as a file has them
        self._trained: dict[str, Trained] = {}  # not yet learned, but trained together with others
        self._arithmetic: dict[str, str | None] = {}  # of the probes that came from a file
        if template is not None:
            trace.check(template)
            if input_shape is not None:
                self._read(template, input_shape)

    def _read(self, template: nn.Module, input_shape: tuple[int, ...]) -> None:
        graph = trace.trace(template, input_shape)
        self._adopt(graph, measure_gains(template, graph))
        self._template = None

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        self.training = PlainTraining(graph, gains, self.config, self._emit)
        banks = make_banks(graph.banked(), self.training.channels)
        full = parameters(banks, self.training.widths)
        self.base_parameters = self._given_base if self._given_base is not None else full

    def _emit(self, event: dict[str, Any]) -> None:
        """Tell the observer of the moment, if there is one."""
        if self.observer is not None:
            self.observer(event)

    def configure(self, config: Config) -> None:
        """Go on with these settings."""
        self.config = self.training.config = config

    def parent(self, task: str) -> str | None:
        """The earlier task whose network is copied; None: start afresh."""
        raise NotImplementedError

    def learn(self, task: Task) -> TaskReport:
        """Train this task's network, unless that was done together with others."""
        began = time.perf_counter()
        self._check([task])
        graph = self.training.graph
        earlier = task.name in self._trained
        if not earlier:
            self._train([task])
        trained = self._trained.pop(task.name)
        network = self.training.networks[task.name]
        self._records[task.name] = (task.classes, trained.normalise, probe(network, graph.input_shape), trained.val)
        before = sum(stage.seconds for stage in trained.stages) if earlier else 0.0
        return self._report(task, trained.val, trained.stages, is_new=True, began=began - before)

    def is_trained(self, task: str) -> bool:
        """Whether a task that is not learned yet was trained together with others."""
        return task in self._trained

    def _report(
        self,
        task: Task,
        val: float,
        stages: tuple[StageReport, ...],
        *,
        is_new: bool,
        began: float,
        target: float | None = None,
        new_kernels: dict[str, int] | None = None,
    ) -> TaskReport:
        """What learning a task came to, and the word that it is learned; `is_new`: a network was made for it."""
        report = TaskReport(
            name=task.name,
            classes=task.classes,
            target=target,
            val=val,
            stages=stages,
            grew=is_new,
            new_kernels=new_kernels or {"released": 0, "grown": self._new_kernels(is_new)},
            size=self.size(),
            seconds=time.perf_counter() - began,
        )
        self._emit({"event": "committed", "task": task.name, "val": val, "target": target, "grew": is_new})
        return report

    def _check(self, tasks: list[Task]) -> None:
        for task in tasks:
            if self._template is not None:
                self._read(self._template, task.input_shape)
            check_fits(task, self._records, self.training.graph.input_shape)

    def _train(self, tasks: list[Task]) -> None:
        """Train these tasks' networks, side by side: on a part of the data for their scores, then on all of it."""
        began = time.perf_counter()
        config, jobs = self.config, []
        numbers = {name: number for number, name in enumerate(self._records, start=1)}
        for task in tasks:
            number = numbers.setdefault(task.name, len(numbers) + 1)
            part, held_out = parts_of(task, config)
            parent = self.parent(task.name)
            for images, recipe in zip((part, task.train), config.recipes(number), strict=False):
                jobs.append(PlainJob(task, images, held_out, measure(images), recipe, parent))
        results = self.training.train_together(jobs)
        share = (time.perf_counter() - began) / sum(job.recipe.epochs for job in jobs)  # seconds an epoch
        each = len(jobs) // len(tasks)
        for number, task in enumerate(tasks):
            mine = slice(number * each, (number + 1) * each)
            val = results[mine][0].val
            stages = stage_reports([job.recipe for job in jobs[mine]], val, share)
            self._trained[task.name] = Trained(jobs[mine][-1].normalise, val, stages)

    def _new_kernels(self, is_new: bool) -> int:
        """How many kernels the last task was the first to train: all of a new network."""
        if not is_new:
            return 0
        banks = make_banks(self.training.graph.banked(), self.training.channels)
        return sum(math.prod(bank.extent(self.training.widths)) for bank in banks.values())

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks learned so far, in their order."""
        return list(self._records)

    def network(self, task: str) -> nn.Module:
        """A task's network, as a plain module of its own."""
        if task not in self._records:
            raise unknown("task", task, self._records)
        source = self.training.networks[task]
        copy = build(self.training.graph, self.training.channels, self.training.widths, len(self._records[task][0]))
        return simplest(fill(copy, source.state_dict()))

    def networks(self, tasks: Sequence[str], device: str) -> Iterator[nn.Module]:
        """These tasks' networks one after another, on a device."""
        return (self.network(task).to(device) for task in tasks)

    def widths_of(self, task: str) -> Widths:  # noqa: ARG002
        """How wide a task's network is."""
        return self.training.widths

    def work(self, task: str) -> tuple[int, int]:
        """For an image through a task's network: elements of the largest piece of memory, and operations."""
        return limits.work(self.training.graph, self.training.channels, self.widths_of(task))

    def normalisation(self, task: str) -> Normalisation:
        """What a task's images go through before its network."""
        if task not in self._records:
            raise unknown("task", task, self._records)
        return self._records[task][1]

    def size(self) -> Size:
        """Parameters and bytes by part, measured on the bytes that a save writes."""
        return measure_size(self.state(), self.base_parameters)

    def save(self, path: str | Path) -> int:
        """Write everything to one safetensors file, atomically; returns its bytes."""
        state = self.state()
        return container.save(path, state.tensors, state.meta)

    def state(self) -> State:
        """Every network, as data."""
        graph, tasks = self.training.graph, []
        tensors: dict[str, Tensor] = {}
        for number, (name, record) in enumerate(self._records.items(), start=1):
            if name not in self._stored:  # a network that was learned does not change
                network = self.training.networks[name].state_dict()
                kernels = [network[f"{node.name}.weight"].flatten() for node in graph.banked()]
                shapes = own_shapes(graph, self.training.channels, self.training.widths, len(record[0]))
                self._stored[name] = {
                    "kernels": torch.cat(kernels).to(FORMATS[self.config.kernel_format]),
                    **{part: flat.flatten(network, keys) for part, keys in divide(graph, shapes).items()},
                    "probe": record[2],
                }
            tensors |= {f"task/{number}/{part}": tensor for part, tensor in self._stored[name].items()}
            tasks.append(self._entry(number, name, record))
        return State(tensors, {**self._about(), "tasks": tasks})

    def _about(self) -> dict[str, Any]:
        """What a file says beside its tasks."""
        return {
            "method": self.name,
            "config": self.config.for_file(),
            "graph": self.training.graph.to_json(),
            "gains": self.training.gains,
            "base_parameters": self.base_parameters,
        }

    def _entry(self, number: int, name: str, record: PlainRecord) -> dict[str, Any]:
        """What a file says of a task beside its tensors."""
        classes, normalise, _, val = record
        return {
            "number": number,
            "name": name,
            "classes": list(classes),
            "mean": list(normalise.mean),
            "deviation": list(normalise.deviation),
            "val": val,
            "arithmetic": self._arithmetic.get(name, arithmetic.here()),
        }

    def _record(self, entry: Fields, logits: Tensor) -> PlainRecord:
        """The record that `_entry` described."""
        inputs = self.training.graph.input_shape[0]
        normalise = Normalisation(entry.numbers("mean", inputs), entry.numbers("deviation", inputs, above=0.0))
        self._arithmetic[entry.text("name")] = entry.text_or_none("arithmetic")
        return entry.names("classes"), normalise, logits, entry.number("val")

    def load_state(self, state: State) -> None:
        """Become what was saved."""
        meta, tensors = Fields(state.meta, "its metadata"), state.tensors
        try:
            self.config = Config.from_json(meta.any("config"))
            self._given_base = meta.whole("base_parameters", 1)
            self._adopt(*check.read_graph(meta, check.stored_bytes(tensors)))
            self._records, self._arithmetic = {}, {}
            self._load_tasks(meta, tensors)
        except FileError:
            raise
        except (GrownError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise FileError(f"this is not a model of this library: {first_line(error)}") from error
        self._template = None

    def _load_tasks(self, meta: Fields, tensors: dict[str, Tensor]) -> None:
        tasks = check.read_tasks(meta.items("tasks"), len(self.training.graph.nodes), check.stored_bytes(tensors))
        check.check_plain(tensors, tasks)
        for entry in tasks:
            self._load_task(entry, tensors)

    def _load_task(self, entry: Fields, tensors: dict[str, Tensor]) -> None:
        training, graph = self.training, self.training.graph
        prefix = f"task/{entry.whole('number')}/"
        record = self._record(entry, tensors[prefix + "probe"])
        classes = record[0]
        network = build(graph, training.channels, training.widths, len(classes))
        values: dict[str, Tensor] = {}
        for part, keys in divide(graph, own_shapes(graph, training.channels, training.widths, len(classes))).items():
            values |= flat.split(prefix + part, tensors[prefix + part], keys)
        plain = network.state_dict()
        shapes = {f"{node.name}.weight": plain[f"{node.name}.weight"].shape for node in graph.banked()}
        values |= flat.split(prefix + "kernels", tensors[prefix + "kernels"].float(), shapes)
        self.training.networks[entry.text("name")] = fill(network, values)
        self._records[entry.text("name")] = record
