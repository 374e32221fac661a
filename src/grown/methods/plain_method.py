"""A plain network per task: what Scratch and Fine-tune have in common."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown.config import Config
from grown.data.task import Normalisation, Task, measure
from grown.errors import FileError, GrownError, unknown
from grown.growth.budget import parameters
from grown.io import arithmetic, container, flat
from grown.io.fields import Fields, first_line
from grown.io.size import measure as measure_size
from grown.io.state import Size, State
from grown.methods import check
from grown.methods.base import Observer, StageReport, TaskReport, check_fits, probe
from grown.methods.plain import PlainTraining
from grown.nn import trace
from grown.nn.bank import make_banks
from grown.nn.graph import Graph
from grown.nn.initial import measure_gains
from grown.nn.plain import build, divide, fill, own_shapes


class PlainMethod:
    """Keeps one network of the template's widths for each task; nothing is shared, so nothing is forgotten."""

    name: ClassVar[str]
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
        self._records: dict[str, tuple[tuple[str, ...], Normalisation, Tensor, float]] = {}
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

    def parent(self, task: str) -> str | None:
        """The earlier task whose network is copied; None: start afresh."""
        raise NotImplementedError

    def learn(self, task: Task) -> TaskReport:
        """Train this task's network."""
        began = time.perf_counter()
        if self._template is not None:
            self._read(self._template, task.input_shape)
        graph = self.training.graph
        check_fits(task, self._records, graph.input_shape)
        part, held_out = task.hold_out(self.config.holdout, self.config.seed)
        normalise = measure(part)
        parent = self.parent(task.name)
        epochs = self.config.recipe.epochs
        result = self.training.train(task, part, held_out, normalise, parent)
        stages = [StageReport("train", epochs, result.val, time.perf_counter() - began)]
        if self.config.refit:
            again = time.perf_counter()
            normalise = measure(task.train)
            self.training.train(task, task.train, held_out, normalise, parent)
            stages.append(StageReport("refit", epochs, None, time.perf_counter() - again))
        network = self.training.networks[task.name]
        self._records[task.name] = (task.classes, normalise, probe(network, graph.input_shape), result.val)
        seconds = time.perf_counter() - began
        banks = make_banks(graph.banked(), self.training.channels)
        kernels = sum(math.prod(bank.extent(self.training.widths)) for bank in banks.values())
        report = TaskReport(
            name=task.name,
            classes=task.classes,
            target=None,
            val=result.val,
            stages=tuple(stages),
            grew=True,
            new_kernels={"released": 0, "grown": kernels},
            size=self.size(),
            seconds=seconds,
        )
        self._emit({"event": "committed", "task": task.name, "val": result.val, "target": None, "grew": True})
        return report

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
        return fill(copy, source.state_dict())

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
        graph, tensors, tasks = self.training.graph, {}, []
        for number, (name, (classes, normalise, logits, val)) in enumerate(self._records.items(), start=1):
            network = self.training.networks[name].state_dict()
            prefix = f"task/{number}/"
            kernels = [network[f"{node.name}.weight"].flatten() for node in graph.banked()]
            tensors[prefix + "kernels"] = torch.cat(kernels)
            shapes = own_shapes(graph, self.training.channels, self.training.widths, len(classes))
            for part, keys in divide(graph, shapes).items():
                tensors[prefix + part] = flat.flatten(network, keys)
            tensors[prefix + "probe"] = logits
            tasks.append(
                {
                    "number": number,
                    "name": name,
                    "classes": list(classes),
                    "mean": list(normalise.mean),
                    "deviation": list(normalise.deviation),
                    "val": val,
                    "arithmetic": self._arithmetic.get(name, arithmetic.here()),
                }
            )
        meta = {
            "method": self.name,
            "config": self.config.for_file(),
            "graph": graph.to_json(),
            "gains": self.training.gains,
            "base_parameters": self.base_parameters,
            "tasks": tasks,
        }
        return State(tensors, meta)

    def load_state(self, state: State) -> None:
        """Become what was saved."""
        meta, tensors = Fields(state.meta, "its metadata"), state.tensors
        try:
            self.config = Config.from_json(meta.any("config"))
            self._given_base = meta.whole("base_parameters", 1)
            self._adopt(*check.read_graph(meta, check.stored_bytes(tensors)))
            tasks = check.read_tasks(meta, len(self.training.graph.nodes), check.stored_bytes(tensors))
            check.check_plain(tensors, tasks)
            self._records, self._arithmetic = {}, {}
            for entry in tasks:
                self._load_task(entry, tensors)
        except FileError:
            raise
        except (GrownError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise FileError(f"this is not a model of this library: {first_line(error)}") from error
        self._template = None

    def _load_task(self, entry: Fields, tensors: dict[str, Tensor]) -> None:
        training, graph = self.training, self.training.graph
        prefix, classes = f"task/{entry.whole('number')}/", entry.names("classes")
        network = build(graph, training.channels, training.widths, len(classes))
        values: dict[str, Tensor] = {}
        for part, keys in divide(graph, own_shapes(graph, training.channels, training.widths, len(classes))).items():
            values |= flat.split(prefix + part, tensors[prefix + part], keys)
        plain = network.state_dict()
        shapes = {f"{node.name}.weight": plain[f"{node.name}.weight"].shape for node in graph.banked()}
        values |= flat.split(prefix + "kernels", tensors[prefix + "kernels"].float(), shapes)
        name, inputs = entry.text("name"), graph.input_shape[0]
        normalise = Normalisation(entry.numbers("mean", inputs), entry.numbers("deviation", inputs, above=0.0))
        self.training.networks[name] = fill(network, values)
        self._records[name] = (classes, normalise, tensors[prefix + "probe"], entry.number("val"))
        self._arithmetic[name] = entry.text_or_none("arithmetic")
