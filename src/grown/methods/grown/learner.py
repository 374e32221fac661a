"""The learner: banks that grow, a record per task, and the calls to learn, extract, predict and save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from grown.config import Config
from grown.data.normalisation import Normalisation
from grown.data.task import Task
from grown.errors import ConfigError, FileError, GrownError, TaskError, unknown
from grown.growth import budget
from grown.io import container, lock
from grown.io.fields import Fields, first_line
from grown.io.journal import Journal
from grown.io.size import measure
from grown.io.state import Size, State
from grown.methods import check
from grown.methods.base import Observer, TaskReport, check_fits
from grown.methods.grown import algorithm, inference, record
from grown.methods.grown.mixed import MixedBatches
from grown.methods.grown.stage import Stage
from grown.methods.grown.target import Targets
from grown.nn import bits, trace
from grown.nn.axes import Widths
from grown.nn.bank import FORMATS, Bank, make_banks, no_widths
from grown.nn.graph import Graph
from grown.nn.groups import Channels, find_channels
from grown.nn.initial import measure_gains


class Learner:
    """Learns tasks one after another with one growing network; old tasks stay identical to the last bit.

    `template` is any traceable `nn.Module` at 1x, whose last linear layer is the head. It is read, never trained.
    `keep` is a folder for the model after each task and for what `resume` goes on from if the process ends.
    """

    name: ClassVar[str] = "grown"
    forgets: ClassVar[bool] = False
    config: Config
    stage_type: ClassVar[type[Stage]] = Stage
    picks: ClassVar[bool] = True  # whether a task chooses among earlier kernels, so that its choice is in the file
    graph: Graph
    channels: Channels
    banks: dict[str, Bank]
    widths: Widths
    gains: dict[str, float]
    base_parameters: int

    def __init__(
        self,
        template: nn.Module | None,
        config: Config | None = None,
        *,
        input_shape: tuple[int, ...] | None = None,
        base_parameters: int | None = None,
        observer: Observer | None = None,
        keep: str | Path | None = None,
    ) -> None:
        self.configure(config if config is not None else Config())
        self.records: dict[str, record.Record] = {}
        self.stage: Stage | None = None
        self.observer = observer
        self.targets = Targets(self)
        self.next_number = 1
        self._ready: dict[tuple[str, str], tuple[record.Record, nn.Module]] = {}
        self._mixed: dict[tuple[str, torch.dtype], MixedBatches] = {}
        self._given_base = base_parameters
        self._keep = Path(keep) if keep is not None else None
        if self._keep is not None:
            self._keep.mkdir(parents=True, exist_ok=True)
            lock.hold(self._keep)
        self._template = template
        if template is not None:
            trace.check(template)
            if input_shape is not None:
                self._read(input_shape)

    def _read(self, input_shape: tuple[int, ...]) -> None:
        """Trace the template for these inputs; once."""
        if self._template is None:
            raise ConfigError("this learner has no template")
        graph = trace.trace(self._template, input_shape)
        self._adopt(graph, measure_gains(self._template, graph))
        self.seed_widths()  # refuses a size that is too small
        self._template = None

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        self.graph, self.gains = graph, gains
        self.channels = find_channels(graph, self.config.width_multiple)
        self.banks = make_banks(graph.banked(), self.channels)
        self.widths = no_widths(self.channels)
        full = budget.parameters(self.banks, self.channels.template_widths())
        self.base_parameters = self._given_base if self._given_base is not None else full

    # --- learning ----------------------------------------------------------------------------------------------------

    def learn(self, task: Task) -> TaskReport:
        """Learn one more task: reuse what is there, grow only if the target is missed (the paper's Algorithm 1)."""
        if self._keep is None:
            return self._learn(task)
        journal, scope = Journal(self._keep / "resume"), f"task{self.next_number}"
        with journal.scope(scope):
            report = self._learn(task)
        self.keep_targets(self._keep / "resume")
        self.save(self._keep / "model.safetensors")
        journal.clear(scope)
        return report

    def _learn(self, task: Task) -> TaskReport:
        return algorithm.learn(self, task)

    def remember(self, task: Task) -> None:
        """Keep what a learned task's images look like to it, so that its images can be told from others'.

        `learn` does this; after a loop of one's own it is one call, or `commit(remember=True)`. Only training images
        are read.
        """
        mine = self._record(task.name)
        with algorithm.using_threads(self.config.threads):
            mine.features = inference.look_at(self, task)

    @classmethod
    def resume(
        cls, path: str | Path, template: nn.Module | None = None, config: Config | None = None, **more: Any
    ) -> Learner:
        """Go on where a process ended that learned with `keep=path`: behind its last task, and inside the next.

        `template` is needed if not even the first task was finished. Learn the same tasks in the same order; those in
        `tasks` are done.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise FileError(f"{folder}: there is no such folder")
        learner = cls(template, config, keep=folder, **more)
        if (folder / "model.safetensors").is_file():
            learner.load_state(State(*container.load(folder / "model.safetensors")))
            learner.configure(config if config is not None else learner.config)
            learner.resume_targets(folder / "resume")
        elif template is None:
            raise ConfigError(f"{folder} holds no model yet, so its first task begins again: give the template too")
        return learner

    def close(self) -> None:
        """Let others have the folder that this learner keeps its model in."""
        if self._keep is not None:
            lock.release(self._keep)

    def keep_targets(self, folder: Path) -> None:
        """Write the networks that only the target is measured with, where later tasks need them."""
        self.targets.keep(folder)

    def resume_targets(self, folder: Path) -> None:
        """Have them again."""
        self.targets.resume(folder)

    def open(self, task: Task) -> Stage:
        """Begin a task by hand: the stage has the network, its parameter groups and penalty, expand and commit."""
        if self._template is not None:
            self._read(task.input_shape)
        check_fits(task, self.records, self.graph.input_shape)
        self.stage = self.stage_type(self, task)
        return self.stage

    def seed_widths(self) -> Widths:
        """Where task 1 starts."""
        config = self.config
        start = config.start_size if config.start_size is not None else config.seed_size / 2
        size = start if config.grow else config.seed_size
        return budget.widths_within(self.channels, self.banks, size * self.base_parameters, config.shape)

    def configure(self, config: Config) -> None:
        """Go on with these settings."""
        self.config = config

    def emit(self, event: str, **details: Any) -> None:
        """Tell the observer, if there is one."""
        if self.observer is not None:
            self.observer({"event": event, **details})

    # --- using -------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks learned so far, in their order."""
        return list(self.records)

    def _record(self, task: str) -> record.Record:
        if task not in self.records:
            raise unknown("task", task, self.records)
        return self.records[task]

    def extract(self, task: str) -> nn.Module:
        """A task's network as a plain module, physically narrow, in evaluation mode, on the CPU."""
        return next(self.networks([task], "cpu"))

    def network(self, task: str) -> nn.Module:
        """The same as `extract`, by the name that every method has."""
        return self.extract(task)

    def networks(self, tasks: Sequence[str], device: str) -> Iterator[nn.Module]:
        """These tasks' networks one after another, each put together on the device: the same bits, in less time."""
        kernels = {name: bank.kernels.to(device) for name, bank in self.banks.items()}
        for task in tasks:
            mine = self._record(task)
            yield record.extract(mine, self.graph, self.channels, self.banks, self.widths, kernels)

    def normalisation(self, task: str) -> Normalisation:
        """What a task's images go through before its network."""
        return self._record(task).normalisation

    def classes(self, task: str) -> tuple[str, ...]:
        """A task's class names."""
        return self._record(task).classes

    def prepare(self, task: str, images: ArrayLike) -> Tensor:
        """Images (n, height, width, channels), or features (n, f), as a task's network takes them."""
        return self._normalised(task, self._checked(images))

    def _normalised(self, task: str, images: Tensor) -> Tensor:
        return self._record(task).normalisation(images.permute(0, 3, 1, 2) if images.ndim == 4 else images)

    def _checked(self, images: ArrayLike) -> Tensor:
        """Images (n, height, width, channels), or features (n, f), that fit the network."""
        array = np.asarray(images)
        if array.ndim == 3:
            array = array[..., None]
        wanted = self.graph.input_shape
        wanted = (*wanted[1:], wanted[0]) if len(wanted) == 3 else wanted
        if tuple(array.shape[1:]) != wanted:
            raise TaskError(
                f"images are {list(array.shape[1:])} (height, width, channels), but this network takes {list(wanted)}"
            )
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise TaskError("an image holds NaN or infinity")
        return tensor

    def ready(self, task: str, device: str = "cpu") -> nn.Module:
        """A task's network, extracted once and kept: to be run, not to be changed."""
        mine, key = self._record(task), (task, device)
        if key not in self._ready or self._ready[key][0] is not mine:
            self._ready[key] = (mine, next(self.networks([task], device)))
        return self._ready[key][1]

    @torch.inference_mode()
    def predict(self, task: str, images: ArrayLike) -> Tensor:
        """Class probabilities (n, classes) for images of a known task."""
        x = self.prepare(task, images)
        probabilities: Tensor = self.ready(task)(x).softmax(1)
        return probabilities

    @torch.inference_mode()
    def predict_mixed(self, images: ArrayLike, tasks: Sequence[str], device: str = "cpu") -> list[Tensor]:
        """Class probabilities of each image by its own task, in their order: those of one task run together."""
        checked = self._checked(images)
        rows = inference.rows_by_task(len(checked), tasks)
        if torch.device(device).type == "cuda":
            checked = checked if checked.dtype == torch.uint8 else checked.float()
            key = (device, checked.dtype)
            if key not in self._mixed:
                self._mixed[key] = MixedBatches(self, device, checked)
            return self._mixed[key].predict(checked, rows)
        found: dict[int, Tensor] = {}
        for name, mine in rows.items():
            x = self._normalised(name, checked[mine])
            found |= zip(mine, self.ready(name, device)(x).softmax(1), strict=True)
        return [found[number] for number in range(len(tasks))]

    def infer(self, images: ArrayLike, by: str = "features", device: str = "cpu") -> list[str]:
        """The most likely task of each image: the least far from what is stored of it, or by "entropy" the surest."""
        return inference.infer(self, images, by, device)

    # --- keeping -----------------------------------------------------------------------------------------------------

    def size(self) -> Size:
        """Parameters and bytes by part, measured on the bytes that `save` writes."""
        return measure(self.state(), self.base_parameters)

    def save(self, path: str | Path) -> int:
        """Write everything to one safetensors file, atomically; returns its bytes."""
        state = self.state()
        tasks = check.read_tasks(state.meta["tasks"], len(self.graph.nodes), check.stored_bytes(state.tensors))
        check.check_tensors(state.tensors, tasks, self.graph, self.channels, self.banks, self.widths, self.picks)
        return container.save(path, state.tensors, state.meta)

    def state(self) -> State:
        """Everything that was learned, as data."""
        if not self.records:
            raise ConfigError("nothing was learned yet, so there is nothing to save")
        tensors: dict[str, Tensor] = {}
        for name, bank in self.banks.items():
            owner = bank.owner
            tensors[f"bank/{name}/kernels"] = bank.kernels[owner > 0].to(FORMATS[self.config.kernel_format])
            tensors[f"bank/{name}/owners"] = bits.pack_numbers(owner)
        tasks = []
        for entry in self.records.values():
            more, meta = record.to_file(entry, self.graph, self.channels, self.banks, self.widths)
            tensors.update(more)
            tasks.append(meta)
        return State(
            tensors,
            {
                "method": self.name,
                "config": self.config.for_file(),
                "graph": self.graph.to_json(),
                "gains": self.gains,
                "base_parameters": self.base_parameters,
                "widths": list(self.widths),
                "next_number": self.next_number,
                "tasks": tasks,
            },
        )

    def load_state(self, state: State) -> None:
        """Become what was saved."""
        meta, tensors = Fields(state.meta, "its metadata"), state.tensors
        try:
            self.configure(Config.from_json(meta.any("config")))
            self._given_base = meta.whole("base_parameters", 1)
            self._adopt(*check.read_graph(meta, check.stored_bytes(tensors), self.config.width_multiple))
            self.widths = check.read_widths(meta, self.channels)
            tasks = check.read_tasks(meta.items("tasks"), len(self.graph.nodes), check.stored_bytes(tensors))
            if not tasks:
                raise FileError("it has no task")
            self.next_number = meta.whole("next_number", tasks[-1].whole("number") + 1, 2**31 - 1)
            check.check_tensors(tensors, tasks, self.graph, self.channels, self.banks, self.widths, self.picks)
            for name, bank in self.banks.items():
                check.read_bank(name, bank, tensors, self.widths, self.next_number - 1)
            self.records = {}
            for entry in tasks:
                loaded = record.from_file(entry, tensors, self.graph, self.channels, self.banks, self.widths)
                self.records[loaded.name] = loaded
        except FileError:
            raise
        except (GrownError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise FileError(f"this is not a model of this library: {first_line(error)}") from error
        self._template, self.stage = None, None
