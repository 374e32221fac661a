"""The accuracy that a task should reach: a number, another network's on the same held-out images, or a file's."""

from __future__ import annotations

import json
from collections.abc import Sized
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from grown.config import Config, check_target
from grown.data.normalisation import Normalisation
from grown.data.part import Part
from grown.data.task import Task
from grown.errors import ConfigError, FileError
from grown.io import container
from grown.io.fields import Fields
from grown.io.journal import JOURNAL
from grown.methods.base import Observer
from grown.methods.plain import PlainJob, PlainTraining
from grown.nn.graph import Graph
from grown.nn.plain import build, fill

KEPT = "targets.safetensors"


class Owner(Protocol):
    """As much of a method as its targets ask for."""

    config: Config
    observer: Observer | None

    @property
    def graph(self) -> Graph: ...

    @property
    def gains(self) -> dict[str, float]: ...

    @property
    def records(self) -> Sized: ...

    def emit(self, event: str, **details: Any) -> None: ...


class Opened(Protocol):
    """As much of a task that was opened: what trains, what decides."""

    @property
    def task(self) -> Task: ...

    @property
    def fit(self) -> Part: ...

    @property
    def held_out(self) -> Part: ...

    @property
    def normalise(self) -> Normalisation: ...


class Targets:
    """Finds each task's target; keeps the last reference network, so that transfer can be measured."""

    def __init__(self, learner: Owner) -> None:
        self.learner = learner
        self.reference: nn.Module | None = None  # Scratch's network for the last task, where one was trained
        self._finetune: PlainTraining | None = None

    def _tell(self, event: dict[str, Any]) -> None:
        """Tell the observer of the moment, if there is one."""
        if self.learner.observer is not None:
            self.learner.observer(event)

    def keep(self, folder: Path) -> None:
        """Write the networks of earlier targets, where later ones need them."""
        if self._finetune is None:
            return
        networks = self._finetune.networks
        tensors = {
            f"{number}/{key}": value
            for number, network in enumerate(networks.values())
            for key, value in network.state_dict().items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        container.save(folder / KEPT, tensors, {"names": list(networks)}, JOURNAL)

    def resume(self, folder: Path) -> None:
        """Have them again."""
        if not (folder / KEPT).is_file():
            return
        learner = self.learner
        tensors, meta = container.load(folder / KEPT, JOURNAL)
        training = PlainTraining(learner.graph, learner.gains, learner.config, self._tell)
        for number, name in enumerate(Fields(meta, "its metadata").any("names")):
            mine = {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith(f"{number}/")}
            classes = len(mine[f"{learner.graph.head.name}.weight"])
            training.networks[name] = fill(build(training.graph, training.channels, training.widths, classes), mine)
        self._finetune = training

    def of(self, stage: Opened) -> float | None:
        """The target for the task that was opened; None if nothing is to be reached."""
        target = self.learner.config.target
        self.reference = None
        if callable(target):
            value = target(stage.task)
            check_target(float(value))
            return float(value)
        if isinstance(target, int | float):
            return float(target)
        if target == "callable":
            raise ConfigError(
                "this model's target was a function, which a file does not hold; set another with "
                "learner.config = learner.config.replace(target=...)"
            )
        if str(target) in ("scratch", "finetune", "best"):
            value = self._trained(stage, str(target))
            self.learner.emit("target", task=stage.task.name, target=value, of=str(target))
            return value
        return self._from_file(Path(target), stage.task.name)

    def _trained(self, stage: Opened, kind: str) -> float:
        """Train the reference networks on what the stage trains on, and score them on what it is scored on."""
        scores = []
        if kind in ("scratch", "best"):
            scratch = PlainTraining(self.learner.graph, self.learner.gains, self.learner.config, self._tell)
            result = scratch.train(self._job(stage, None))
            self.reference = result.network
            scores.append(result.val)
        if kind in ("finetune", "best"):
            if self._finetune is None:
                if self.learner.records:
                    raise ConfigError(
                        f"target {kind!r} needs the networks of all earlier tasks, which a loaded model lacks; "
                        "choose 'scratch' or a number"
                    )
                self._finetune = PlainTraining(self.learner.graph, self.learner.gains, self.learner.config, self._tell)
            parent = self._finetune.random_parent(stage.task.name)
            result = self._finetune.train(self._job(stage, parent))
            scores.append(result.val)
        return max(scores)

    def _job(self, stage: Opened, parent: str | None) -> PlainJob:
        recipe = self.learner.config.deciding(len(self.learner.records) + 1)  # as of what is compared with it
        return PlainJob(stage.task, stage.fit, stage.held_out, stage.normalise, recipe, parent)

    def _from_file(self, path: Path, task: str) -> float:
        targets = read_targets(path)
        if task not in targets:
            raise ConfigError(f"{path} has no task {task!r}. Its tasks: {', '.join(targets) or 'none'}.")
        return targets[task]


def read_targets(path: Path) -> dict[str, float]:
    """Each task's held-out accuracy in a result.json."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        found = {str(task["name"]): float(task["val"]) for task in data["tasks"]}
    except OSError as error:
        raise FileError(f"target file {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"target file {path}: not a result.json with tasks that have name and val") from error
    for value in found.values():
        check_target(value)
    return found
