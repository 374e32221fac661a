"""Small tasks, networks and results that the tests share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import grown
from grown.cli.main import main
from grown.config import Config, Recipe
from grown.errors import Stopped
from grown.io.journal import Journal
from grown.methods import method
from grown.methods.base import Method, TaskReport
from grown.methods.verify import verify

# Packed data beside the project, if it is there.
DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


def make_task(
    name: str, classes: int = 3, shape: tuple[int, ...] = (8, 8, 1), each: int = 16, seed: int = 0, noise: float = 20.0
) -> grown.Task:
    """Images around a random pattern per class."""
    draw = np.random.default_rng([seed, sum(name.encode())])
    patterns = draw.integers(40, 216, size=(classes, *shape))

    def sample(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.arange(classes), count)
        images = patterns[labels] + draw.normal(0, noise, size=(len(labels), *shape))
        return images.clip(0, 255).astype(np.uint8), labels

    return grown.Task(name, train=sample(each), test=sample(6), classes=[f"c{i}" for i in range(classes)])


def quick(**changes: object) -> Config:
    """Settings for trainings of a second or less."""
    recipe = changes.pop("recipe", None) or Recipe(epochs=2, batch=16)
    return Config(**{"target": 0.0, "recipe": recipe, "threads": 1, **changes})  # type: ignore[arg-type]


class Branchy(nn.Module):
    """A user's own network: a residual addition and a concatenation, written without a thought of this library."""

    def __init__(self, channels: int = 1, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 12, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(12)
        self.left = nn.Conv2d(12, 12, 3, padding=1)
        self.left_norm = nn.BatchNorm2d(12)
        self.right = nn.Conv2d(12, 8, 1)
        self.down = nn.Conv2d(20, 16, 3, stride=2, padding=1)
        self.drop = nn.Dropout(0.1)
        self.hidden = nn.Linear(16 * 4, 20)
        self.out = nn.Linear(20, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem_norm(self.stem(x)))
        x = torch.relu(x + self.left_norm(self.left(x)))
        x = torch.cat([x, torch.tanh(self.right(x))], dim=1)
        x = nn.functional.max_pool2d(torch.relu(self.down(x)), 2)
        x = self.drop(x.view(x.size(0), -1))
        return self.out(nn.functional.relu(self.hidden(x)))


def shake(stage: grown.Stage, seed: int, steps: int = 2) -> None:
    """A little training, and scores and gates thrown about: some kernels of every layer on, some off."""
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(stage.parameter_groups(), lr=0.05)
    for _ in range(steps):
        which = torch.randperm(len(stage.fit), generator=draw)[:16]
        x, y = stage.normalise(stage.fit.images[which]), stage.fit.labels[which]
        loss = nn.functional.cross_entropy(stage.network(x), y) + stage.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for layer in stage.network.masked().values():
            if layer.scores is not None:
                layer.scores.copy_(torch.randn(layer.scores.shape, generator=draw) + 0.4)
        for scores in stage.network.gates.values():
            scores.copy_(torch.randn(scores.shape, generator=draw) + 0.3)


def own_backbone() -> nn.Module:
    """What `--backbone helpers:own_backbone` makes."""
    return Branchy(classes=5)


def write_result(folder: Path, method: str, label: str, seed: int = 0, **changes: Any) -> None:
    """A result of three tasks, made up."""
    result = {
        "benchmark": "cifar100-superclass",
        "method": method,
        "label": label,
        "backbone": "vgg16-bn-pool",
        "recipe": "best",
        "protocol": "honest",
        "seed": seed,
        "device": "cpu",
        "base_parameters": 1000,
        "tasks": [{"grew": grew, "stages": [{"epochs": 40}]} for grew in (True, False, seed > 0)],
        "average_accuracy": 80.0 + seed,
        "forgetting": 0.0,
        "size_x": 0.25,
        "bytes_x": 0.375 + seed / 4,
        "bytes": {"total": 1500000 + 1000000 * seed},
        "seconds": {"total": 100.0 + 10 * seed},
    }
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{method}-{label.replace(':', '-')}-{seed}-{len(list(folder.iterdir()))}.json"
    (folder / name).write_text(json.dumps({**result, **changes}))


def content(folder: Path) -> dict[str, Any]:
    """Every file of a run, times aside."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    result = json.loads(found.pop("result.json"))
    del result["seconds"]
    for task in result["tasks"]:
        for stage in task["stages"]:
            del stage["seconds"]
    events = [json.loads(line) for line in found.pop("log.jsonl").splitlines()]
    for event in events:
        del event["seconds"]
        event.pop("took", None)
        event.pop("folder", None)
        if event["event"] == "tested":
            for stage in event["row"]["stages"]:
                del stage["seconds"]
    if "report.html" in found:
        found["report.html"] = re.sub(rb'<section id="times">.*?</section>', b"", found["report.html"], flags=re.DOTALL)
    return {**found, "result": result, "log": events}


def call(*arguments: str) -> int:
    """The command line's exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


class Faults:
    """Makes the n-th call of one of the system's functions fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, number: int, code: int) -> None:
        self.count = 0
        real = getattr(os, name)

        def call(*arguments: Any, **more: Any) -> Any:
            self.count += 1
            if self.count == number:
                if name == "close":
                    real(*arguments, **more)  # what is closed is closed, whatever is said of it
                raise OSError(code, os.strerror(code))
            return real(*arguments, **more)

        monkeypatch.setattr(os, name, call)


def foresee(made: Any, tasks: list[grown.Task]) -> list[grown.Task]:
    """Name all tasks beforehand, as the runner does, to a method that asks for it."""
    if hasattr(made, "foresee"):
        made.foresee(tasks)
    return tasks


def near(one: Tensor, other: Tensor, limit: float) -> None:
    """Values whose difference is small beside them, all together."""
    one, other = one.detach().float(), other.detach().float()
    error = (one - other).norm() / other.norm().clamp_min(1e-9)
    assert float(error) < limit, float(error)


def assert_same_update(plain: dict[str, Tensor], captured: dict[str, Tensor]) -> None:
    """Two trainings' states, equal up to rounding; what a fused norm does not count is no part of them."""
    for key, value in plain.items():
        if not key.endswith("num_batches_tracked"):
            assert float((captured[key] - value).norm()) <= 1e-2 * (1e-3 + float(value.norm())), key


def assert_same_networks(learner: Method, device: str) -> None:
    """What `networks` makes on a device is what `network` makes, to the last bit."""
    made = dict(zip(learner.tasks, learner.networks(learner.tasks, device), strict=True))
    for task, network in made.items():
        plain = learner.network(task).state_dict()
        there = network.state_dict()
        assert list(there) == list(plain)
        assert all(value.device.type == device for value in there.values())
        assert all(torch.equal(there[key].cpu(), value) for key, value in plain.items())


def learned(name: str, count: int, template: nn.Module | None = None, **changes: object) -> Any:
    """A small method by its name that learned so many tasks, each with one class more than the one before."""
    torch.manual_seed(0)
    made = method(name)(template or grown.models.convnet(width=0.25), quick(**changes))
    for number in range(count):
        made.learn(make_task(f"t{number}", classes=2 + number, seed=number))
    return made


def goes_on_from_its_file(whole: Any, tasks: list[grown.Task], folder: Path, *, foresee: bool = False) -> TaskReport:
    """Learn three tasks; what is loaded before the last one learns it to the same bytes. Returns the last report.

    The files are named 0, 1 and 2.
    """
    for number, task in enumerate(tasks):
        report: TaskReport = whole.learn(task)
        whole.save(folder / f"{number}")
    assert verify(folder / "2").exact == [task.name for task in tasks]
    loaded = grown.load(folder / "1")
    if foresee:
        loaded.foresee(tasks)
    loaded.learn(tasks[2])
    loaded.save(folder / "again")
    assert (folder / "again").read_bytes() == (folder / "2").read_bytes()
    return report


def stopped_and_resumed(
    halted: Any, start: Path, task: grown.Task, folder: Path, tell: Callable[[dict[str, Any]], bool]
) -> Any:
    """A task in two goes: `halted` ends after the epoch of which `tell` says so, what its file `start` has goes on."""
    first = Journal(folder)

    def observe(event: dict[str, Any]) -> None:
        if event["event"] == "epoch" and tell(event):
            first.stop_soon()

    halted.observer = observe
    with first.scope(task.name), pytest.raises(Stopped):
        halted.learn(task)
    again = grown.load(start)
    again.observer = observe
    with Journal(folder).scope(task.name):
        again.learn(task)
    return again


def assert_same_state(one: Any, other: Any) -> None:
    """Two methods that would be saved as the same bytes."""
    mine, theirs = one.state(), other.state()
    assert mine.meta == theirs.meta
    assert mine.tensors.keys() == theirs.tensors.keys()
    for key, tensor in theirs.tensors.items():
        assert torch.equal(mine.tensors[key], tensor), key
