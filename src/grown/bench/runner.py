"""Runs one method over one benchmark and writes the run's folder."""

from __future__ import annotations

import dataclasses
import importlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grown import data, metrics
from grown.bench import folder, presets
from grown.config import Config, Recipe, Target
from grown.errors import ConfigError, GrownError, unknown
from grown.methods import load, method
from grown.methods.base import Observer, TaskReport
from grown.models import BACKBONES, backbone
from grown.train.evaluate import evaluate

RECIPE_FIELDS = tuple(f.name for f in dataclasses.fields(Recipe) if f.name != "name")
CONFIG_FIELDS = tuple(f.name for f in dataclasses.fields(Config) if f.name != "recipe")


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line; None means: as the benchmark's preset says."""

    benchmark: str = "digits"
    method: str = "grown"
    backbone: str | None = None
    width: float = 1.0
    recipe: str | None = None
    protocol: str = "honest"
    target: Target | None = None
    seed: int = 0
    threads: int | None = None
    epochs: int | None = None
    tasks: int | None = None
    device: str = "cpu"
    data: Path | None = None
    out: Path | None = None
    label: str = "default"
    settings: tuple[str, ...] = ()  # NAME=VALUE, of Config or of its recipe


def run(request: Request, observer: Observer | None = None) -> tuple[dict[str, Any], Path]:
    """Learn the stream; returns the result and its folder."""
    preset = presets.benchmark(request.benchmark)
    config = configure(request, preset)
    make = method(request.method)
    tasks = data.stream(request.benchmark, request.data)
    if request.tasks is not None:
        if not 1 <= request.tasks <= len(tasks):
            raise ConfigError(f"--tasks must lie between 1 and {len(tasks)}, but got {request.tasks}")
        tasks = tasks[: request.tasks]
    name = request.backbone if request.backbone is not None else preset.backbone
    shape = tasks[0].input_shape
    learner = make(
        make_template(name, shape, request.width, request.seed),
        config,
        input_shape=shape,
        base_parameters=preset.base_parameters or _base(make, name, shape, request, config),
    )
    where = folder.claim(request.out, request.benchmark, request.method, request.seed)
    threads = torch.get_num_threads()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    log = folder.Log(where / "log.jsonl", observer)
    learner.observer = log
    about = {
        "benchmark": request.benchmark,
        "method": request.method,
        "label": request.label,
        "backbone": name,
        "recipe": config.recipe.name,
        "protocol": config.protocol,
        "seed": config.seed,
        "device": config.device,
        "base_parameters": learner.base_parameters,
    }
    try:
        folder.write_json(
            where / "run.json",
            {
                **about,
                "width": request.width,
                "threads": torch.get_num_threads(),
                "config": config.to_json(),
                "tasks": [task.name for task in tasks],
                "versions": folder.versions(),
            },
        )
        log({"event": "run", "tasks": [task.name for task in tasks], "folder": str(where)})
        result = {**about, **_learn_all(learner, tasks, where, log, config.device)}
        folder.write_json(where / "result.json", result)
        log({"event": "done"})
    finally:
        log.close()
        torch.set_num_threads(threads)
    return result, where


def configure(request: Request, preset: presets.Benchmark) -> Config:
    """The preset with what was asked for on top."""
    recipe = presets.recipe(request.recipe if request.recipe is not None else preset.recipe)
    if request.epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=request.epochs)
    changes: dict[str, Any] = {"recipe": recipe, "seed": request.seed, "device": request.device}
    if request.target is not None:
        changes["target"] = request.target
    if request.protocol == "paper":
        # All training images train from the start, so nothing is decided on a part of them first.
        changes |= {"protocol": "paper", "refit": False, "decide": 1.0, "trial": True}
    elif request.protocol != "honest":
        raise unknown("protocol", request.protocol, ("honest", "paper"))
    if request.threads is not None:
        changes["threads"] = request.threads
    if not 0 < request.width <= 16:
        raise ConfigError(f"--width must lie above 0 and at most at 16, but got {request.width}")
    config = override(preset.config.replace(**changes), request.settings)
    check_device(config.device)
    return config


def override(config: Config, settings: tuple[str, ...]) -> Config:
    """Settings given as NAME=VALUE, all at once; a name is a field of `Config` or of its recipe."""
    ours: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set takes NAME=VALUE, but got {setting!r}")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if name not in (*CONFIG_FIELDS, *RECIPE_FIELDS):
            raise unknown("setting", name, (*CONFIG_FIELDS, *RECIPE_FIELDS))
        (recipe if name in RECIPE_FIELDS else ours)[name] = value
    return config.replace(**ours, recipe=dataclasses.replace(config.recipe, **recipe))


def check_device(name: str) -> None:
    """Refuse a device that is not there."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}. Choices: cpu, cuda, cuda:N.") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}. Choices: cpu, cuda, cuda:N.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r} was asked for, but PyTorch sees {torch.cuda.device_count()} CUDA devices")


def make_template(name: str, shape: tuple[int, ...], width: float, seed: int) -> nn.Module:
    """A backbone by name, or `package.module:function` of the user's own; drawn by the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if ":" not in name:
            return backbone(name, channels=shape[0], width=width, image=shape[-1])
        module_name, _, function = name.partition(":")
        if width != 1.0:
            raise ConfigError(f"--width scales the backbones {', '.join(sorted(BACKBONES))}, not {name!r}")
        try:
            made = getattr(importlib.import_module(module_name), function)()
        except GrownError:
            raise
        except Exception as error:
            raise ConfigError(f"backbone {name!r} cannot be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, nn.Module):
            raise ConfigError(f"backbone {name!r} made a {type(made).__name__}, but must make an nn.Module")
        return made


def _base(make: Any, name: str, shape: tuple[int, ...], request: Request, config: Config) -> int | None:
    """1x is the backbone at width 1, also where another width is asked for."""
    if request.width == 1.0:
        return None
    reference = make(make_template(name, shape, 1.0, request.seed), config, input_shape=shape)
    return int(reference.base_parameters)


def _learn_all(learner: Any, tasks: list[data.Task], where: Path, log: Observer, device: str) -> dict[str, Any]:
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    matrix: list[list[float]] = []
    alone: list[float | None] = []
    training = evaluation = 0.0
    if (foresee := getattr(learner, "foresee", None)) is not None:
        foresee(tasks)
    for number, task in enumerate(tasks, start=1):
        log({"event": "task", "task": task.name, "number": number, "of": len(tasks)})
        report: TaskReport = learner.learn(task)
        training += report.seconds
        clock = time.perf_counter()
        learner.save(where / "model.safetensors")
        # Every row is measured anew, on networks out of the file; nothing is carried over from earlier rows.
        saved = load(where / "model.safetensors")
        matrix.append(
            [
                evaluate(saved.network(old.name).to(device), old.test, saved.normalisation(old.name), device).accuracy
                for old in tasks[:number]
            ]
        )
        alone.append(_scratch_test(learner, task, device))
        evaluation += time.perf_counter() - clock
        rows.append(_row(report, matrix[-1][-1]))
        log({"event": "tested", "task": task.name, "test": matrix[-1][-1], "row": rows[-1]})
    size = report.size
    return {
        "tasks": rows,
        "accuracy_matrix": matrix,
        "average_accuracy": metrics.average_accuracy(matrix),
        "forgetting": metrics.forgetting(matrix),
        "backward_transfer": metrics.backward_transfer(matrix),
        "forward_transfer": metrics.forward_transfer(matrix[-1], alone),
        "size_x": size.size_x,
        "bytes_x": size.bytes_x,
        "bytes": size.bytes,
        "seconds": {
            "training": training,
            "evaluation": evaluation,
            "total": time.perf_counter() - began,
        },
    }


def _scratch_test(learner: Any, task: data.Task, device: str) -> float | None:
    """Scratch's test accuracy, where the target made one be trained; asked for only after the commit.

    A refit learns from more images than that network did, so then they are not compared.
    """
    targets = getattr(learner, "targets", None)
    if targets is None or targets.reference is None or learner.config.refit:
        return None
    network = targets.reference.to(device)
    return evaluate(network, task.test, learner.normalisation(task.name), device).accuracy


def _row(report: TaskReport, test: float) -> dict[str, Any]:
    return {
        "name": report.name,
        "classes": list(report.classes),
        "target": report.target,
        "val": report.val,
        "test": test,
        "stages": [dataclasses.asdict(stage) for stage in report.stages],
        "grew": report.grew,
        "new_kernels": report.new_kernels,
        "size_x": report.size.size_x,
        "bytes_x": report.size.bytes_x,
        "bytes": report.size.bytes["total"],
    }
