"""A narrow column per task, which reads what all frozen earlier columns make of the same images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown.data.task import Task
from grown.errors import ConfigError, FileError, unknown
from grown.growth.budget import scaled_widths
from grown.io import flat
from grown.io.fields import Fields
from grown.methods import check
from grown.methods.plain import draw_head
from grown.methods.pnn import columns
from grown.methods.pnn.layout import Layout, Shapes, widths_for
from grown.methods.shared.method import SharedMethod
from grown.methods.shared.training import Guard, Training, Weights
from grown.nn import limits
from grown.nn.bank import FORMATS, as_stored
from grown.nn.graph import Graph
from grown.nn.groups import find_channels
from grown.nn.initial import Initializer
from grown.nn.plain import start

USUAL = 10  # tasks, where they are not foreseen
SCALE = 0.1  # where the scalars of laterals start


class PNN(SharedMethod):
    """A narrow column per task with lateral connections from all frozen earlier columns (Rusu and others, 2016).

    `foresee(tasks)` says how many columns are to share `max_size`; the first task sets the width of all.
    """

    name: ClassVar[str] = "pnn"
    forgets: ClassVar[bool] = False
    layout: ClassVar[str] = "each a column that reads those before it"
    _foreseen = USUAL

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._channels = find_channels(graph, self.config.width_multiple)
        self._columns: Layout | None = None  # once there is one
        self._kernels: dict[str, Weights] = {}  # by task: its column's layers
        self._laterals: dict[str, Weights] = {}

    def foresee(self, tasks: Sequence[Task]) -> None:
        """Say how many tasks there will be, those learned already too; nothing else of them is looked at."""
        if not tasks:
            raise ConfigError("pnn shares its budget among all tasks, but no task is foreseen")
        self._foreseen = len(tasks)

    def _layout(self) -> Layout:
        """The columns, whose widths the first one sets."""
        if self._columns is None:
            graph, channels, config = self.training.graph, self._channels, self.config
            if config.pnn_width is not None:
                alone = config.shape == "hidden" and config.pnn_width < 1
                widths = scaled_widths(channels, config.pnn_width, hidden_alone=alone)
            else:
                limit = config.max_size * self.base_parameters
                widths = widths_for(graph, channels, self._foreseen, limit, self.base_parameters, config.shape)
            self._columns = Layout(graph, channels, widths)
        return self._columns

    # --- learning --------------------------------------------------------------------------------------------------

    def _makes_kernels(self) -> bool:
        return True

    def _new_kernels(self, is_new: bool) -> int:  # noqa: ARG002
        """Those of the last column: its layers' and its laterals'."""
        layout, number = self._layout(), len(self._records)
        rows = [(node, *layout.banks[node.name].extent(layout.widths)) for node in layout.graph.banked()]
        own = sum(out * into * layout.times(node, number) for node, out, into in rows)
        return own + sum(math.prod(shape) for shape in layout.lateral_shapes(number).values())

    def _begin(self, task: Task) -> nn.Module:
        """A fresh column, whose laterals read all earlier ones."""
        layout, number = self._layout(), len(self._records) + 1
        network = start(columns.column_in_training(layout, number, len(task.classes)))
        initializer = Initializer(self.training.gains, self._seed(task), 0)
        self._draw(network, number, initializer)
        if number > 1:
            network.set_submodule(columns.EARLIER, columns.frozen(layout, self._all_columns()))
            for name, shape in layout.lateral_shapes(number).items():
                draw = initializer.generator(f"lateral/{name}", 0)
                weight = torch.empty(shape).normal_(0.0, math.sqrt(2.0 / shape[1]), generator=draw)
                repeat = layout.channels.output[layout.places[name]].repeat
                made = columns.Lateral(weight, number - 1, SCALE, repeat)
                network.set_submodule(f"{columns.LATERAL}.{name}", made)
        return network

    @torch.no_grad()
    def _draw(self, network: nn.Module, number: int, initializer: Initializer) -> None:
        """Kernels as the template's, each part by its own fan-in: laterals begin small, the column as if alone."""
        layout = self._layout()
        for node in layout.graph.banked():
            bank = layout.banks[node.name]
            extent, parts = bank.extent(layout.widths), range(layout.times(node, number))
            kernels = torch.cat([initializer.kernels(node.name, extent, bank.kernel, part) for part in parts], dim=1)
            weight = network.get_parameter(f"{node.name}.weight")
            weight.copy_(kernels.flatten(1) if node.op == "linear" else kernels)
        draw_head(network.get_submodule(layout.graph.head.name), initializer)

    def _trained_kernels(self, network: nn.Module) -> dict[str, nn.Parameter]:
        return {key: network.get_parameter(key) for key in self._layout().kernel_shapes(1)}

    def _round(self, training: Training, guard: Guard) -> None:
        """Scalars go into the 1x1 layers, which are rounded as a file has them, as all kernels are."""
        layout, number = self._layout(), len(self._records) + 1
        for name in layout.lateral_shapes(number):
            where = f"{columns.LATERAL}.{name}"
            trained: Any = training.network.get_submodule(where)
            weight = as_stored(trained.folded(), self.config.kernel_format)
            made = columns.settled(columns.lateral(layout, name, number), weight)
            training.network.set_submodule(where, made)
        super()._round(training, guard)

    def _share(self, training: Training, guard: Guard, kernels: Weights) -> None:  # noqa: ARG002
        state = {key: value.cpu().contiguous() for key, value in training.network.state_dict().items()}
        self._kernels[training.task.name] = kernels
        self._laterals[training.task.name] = columns.laterals_of(state)

    def _own_shapes(self, task: str, classes: tuple[str, ...]) -> dict[str, Shapes]:
        """Of the column of a task that was learned, or of the next."""
        names = list(self._records)
        return self._layout().own_shapes(1 + (names.index(task) if task in names else len(names)), len(classes))

    # --- using -----------------------------------------------------------------------------------------------------

    def _all_columns(self) -> columns.Columns:
        return [({**self._kernels[name], **self._own[name]}, self._laterals[name]) for name in self._own]

    def network(self, task: str) -> nn.Module:
        """A task's network as a plain module of its own: its column, and all earlier ones as far as it reads them."""
        if task not in self._records:
            raise unknown("task", task, self._records)
        number = 1 + list(self._records).index(task)
        return columns.task_network(self._layout(), self._all_columns()[:number], len(self._records[task][0]))

    def work(self, task: str) -> tuple[int, int]:
        """The same, bounded: each column's layers read twice their channels, and laterals all earlier columns'."""
        layout, number = self._layout(), 1 + list(self._records).index(task)
        largest, operations = limits.work(layout.graph, layout.channels, layout.widths)
        return largest * max(2, number), operations * number * (2 + number)

    # --- files -----------------------------------------------------------------------------------------------------

    def _bank(self) -> dict[str, Tensor]:
        layout, stored = self._layout(), FORMATS[self.config.kernel_format]
        tensors: dict[str, Tensor] = {}
        for number, name in enumerate(self._records, start=1):
            parts = {
                "kernels": flat.flatten(self._kernels[name], layout.kernel_shapes(number)),
                "laterals": flat.flatten(self._laterals[name], layout.lateral_shapes(number)),
            }
            tensors |= {f"task/{number}/{part}": values.to(stored) for part, values in parts.items()}
        return tensors

    def _about(self) -> dict[str, Any]:
        return {**super()._about(), **({"widths": list(self._layout().widths)} if self._records else {})}

    def _load_tasks(self, meta: Fields, tensors: dict[str, Tensor]) -> None:
        entries = meta.items("tasks")
        nodes = len(self.training.graph.nodes) * (len(entries) + 1) // 2  # in a task's network, on average
        tasks = check.read_tasks(entries, nodes, check.stored_bytes(tensors))
        check.check_plain(tensors, tasks, ("laterals",))
        if not tasks:
            return
        widths = check.read_widths(meta, self._channels)
        if min(widths) < 1:
            raise FileError("a channel group of its columns has no channel")
        layout = self._columns = Layout(self.training.graph, self._channels, widths)
        for number, entry in enumerate(tasks, start=1):
            name, prefix = entry.text("name"), f"task/{number}/"
            record = self._records[name] = self._record(entry, tensors[prefix + "probe"])
            shapes = {"kernels": layout.kernel_shapes(number), "laterals": layout.lateral_shapes(number)}
            parts = {
                part: flat.split(prefix + part, tensors[prefix + part].float(), keys)
                for part, keys in {**shapes, **self._own_shapes(name, record[0])}.items()
            }
            self._kernels[name], self._laterals[name] = parts["kernels"], parts["laterals"]
            self._own[name] = {**parts["own"], **parts["head"]}
