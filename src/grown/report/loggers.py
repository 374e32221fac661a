"""A run for other tools: a logger is three methods, fed by the run's events.

`--tensorboard` and `--logger wandb` are two of them. One of your own is `--logger package.module:function`, where the
function gets the run's folder and returns an object with these methods.
"""

from __future__ import annotations

import atexit
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grown.errors import ConfigError, unknown
from grown.report import page_run

Picture = NDArray[np.uint8]  # (height, width, 3)
Value = str | float | int | bool
CELL = 24  # pixels
NOTHING, ALL = (247, 251, 255), (8, 48, 107)  # the colours of a share of 0 and of 1


class Logger(Protocol):
    """What a tool must take."""

    def scalar(self, name: str, value: float, step: int) -> None: ...

    def picture(self, name: str, pixels: Picture, step: int) -> None: ...

    def end(self, settings: dict[str, Value], results: dict[str, float]) -> None: ...


class TensorBoard:
    """Event files in the run's folder, for `tensorboard --logdir`."""

    def __init__(self, folder: Path) -> None:
        make = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._writer: Any = make(str(folder / "tensorboard"), flush_secs=10)
        atexit.register(self._writer.close)  # a run that is stopped loses nothing

    def scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def picture(self, name: str, pixels: Picture, step: int) -> None:
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def end(self, settings: dict[str, Value], results: dict[str, float]) -> None:
        self._writer.add_hparams(settings, {f"result/{key}": value for key, value in results.items()}, run_name=".")
        self._writer.close()
        atexit.unregister(self._writer.close)


class WandB:
    """Weights & Biases; the variable WANDB_MODE=offline keeps everything in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self._run = self._wandb.init(project="grown", name=folder.name, dir=str(folder))
        self._known: set[str] = set()

    def _log(self, name: str, value: Any, step: int) -> None:
        if name not in self._known:  # each curve has steps of its own
            self._run.define_metric(name, step_metric=f"{name}/step")
            self._known.add(name)
        self._run.log({name: value, f"{name}/step": step})

    def scalar(self, name: str, value: float, step: int) -> None:
        self._log(name, value, step)

    def picture(self, name: str, pixels: Picture, step: int) -> None:
        self._log(name, self._wandb.Image(pixels), step)

    def end(self, settings: dict[str, Value], results: dict[str, float]) -> None:
        self._run.config.update(settings)
        self._run.summary.update(results)
        self._run.finish()


Make = Callable[[Path], Logger]
LOGGERS: dict[str, tuple[Make, str]] = {  # name -> (what makes it, the module that it needs)
    "tensorboard": (TensorBoard, "torch.utils.tensorboard"),
    "wandb": (WandB, "wandb"),
}


def find(name: str) -> Make:
    """What makes the logger of this name; refused here, before a run begins, if it cannot be had."""
    if name in LOGGERS:
        make, needs = LOGGERS[name]
        try:
            importlib.import_module(needs)
        except ImportError as error:
            raise ConfigError(f"{name} is not installed: pip install 'grown[{name}]'") from error
        return make
    module, colon, function = name.partition(":")
    if not colon:
        raise unknown("logger", name, (*LOGGERS, "package.module:function"))
    try:
        found: Make = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise ConfigError(f"logger {name!r} cannot be made: {type(error).__name__}: {error}") from error
    return found


class Feed:
    """Turns a run's events into calls of a logger. Steps are epochs within a stage, and tasks within the run."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._logger: Logger | None = None
        self._tasks: list[str] = []

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event."""
        kind = event["event"]
        if kind == "run":
            self._logger, self._tasks = self._make(Path(event["folder"])), event["tasks"]
        elif self._logger is not None and kind == "epoch":
            stage = f"{event['stage']} {event['round']}" if event.get("round") else event["stage"]
            for key, name in EPOCH.items():
                if key in event:
                    self._logger.scalar(f"{event['task']}/{stage}/{name}", float(event[key]), event["epoch"])
        elif self._logger is not None and kind == "tested":
            row, step = event["row"], self._tasks.index(event["task"]) + 1
            for key, name in ROW.items():
                if row.get(key) is not None:
                    self._logger.scalar(f"run/{name}", float(row[key]), step)

    def end(self, folder: Path) -> None:
        """The run is over: pictures of its structure, its settings, its results."""
        if self._logger is None:  # it had ended before
            return
        run = page_run.read(folder)
        if run.structure is not None:
            used = run.structure.used
            layers = np.array(run.structure.owned, dtype=np.float64).T
            for task in range(1, len(used) + 1):
                self._logger.picture("picked kernels, task x owner", picked(used[:task]), task)
                self._logger.picture("trained kernels, layer x task", paint(layers[:, :task] / layers.max()), task)
        self._logger.end(flat(run.settings), {key: float(run.result[key]) for key in RESULTS})


EPOCH = {"loss": "loss", "val": "held-out accuracy", "val_loss": "held-out loss", "size_x": "size"}
ROW = {"test": "test accuracy", "val": "held-out accuracy", "target": "target", "size_x": "size", "bytes_x": "bytes_x"}
RESULTS = ("average_accuracy", "forgetting", "size_x", "bytes_x")


def picked(used: list[list[int]]) -> Picture:
    """Row i, column j: the share of task j's kernels that task i uses."""
    shares = np.full((len(used), len(used)), np.nan)
    for task, row in enumerate(used):
        shares[task, : len(row)] = [count / max(1, used[owner][owner]) for owner, count in enumerate(row)]
    return paint(shares)


def paint(shares: NDArray[np.float64]) -> Picture:
    """Shares from 0 to 1 as cells between two colours; what is not a number is grey."""
    low, high = np.array(NOTHING, dtype=np.float64), np.array(ALL, dtype=np.float64)
    known = np.nan_to_num(shares)[..., None]
    cells = np.where(np.isnan(shares)[..., None], 200.0, low + (high - low) * known)
    return cells.round().astype(np.uint8).repeat(CELL, axis=0).repeat(CELL, axis=1)


def flat(settings: dict[str, Any]) -> dict[str, Value]:
    """The settings of a run as one level of plain values."""
    found: dict[str, Value] = {}
    for name, value in settings.items():
        if name in ("request", "data", "tasks"):
            continue
        if isinstance(value, dict):
            found |= {f"{name}.{key}" if name != "config" else key: inner for key, inner in flat(value).items()}
        elif isinstance(value, str | float | int | bool):
            found[name] = value
        elif value is None:
            found[name] = "none"
    return found
