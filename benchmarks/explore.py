"""Compare settings on held-out images alone, before any test image is read.

    python benchmarks/explore.py METHOD VARIANTS.json --data DIR --out FILE.json [--benchmark NAME] [--recipe NAME]

VARIANTS.json names variants: {"wide": {"width": 1.0, "policy": "trivial"}, ...}. A variant sets fields of the recipe
and of the settings, and beside them `backbone`, `width` (not GROWN), `tasks` (the first so many; 10) and, for GROWN,
`grow`: the numbers of the tasks that expand before they train, so that what growth brings is seen without what decides
on it (`max_size` is far away unless a variant sets it; a task that finds no room does not expand). A fifth of each
task's training images is held out; its accuracy, averaged over the tasks, is the result.

With `--whole` a variant is run as `grown run` does it, with targets and growth, on tasks without that fifth, which is
then read as test images are; its `seeds` (a list; [0]) are averaged.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import grown
from grown.bench.presets import BENCHMARKS, RECIPES, Benchmark
from grown.bench.request import CONFIG_FIELDS, RECIPE_FIELDS, Request, make_template, read_tasks
from grown.bench.runner import run
from grown.config import Config
from grown.methods.grown import algorithm

HOLDOUT = 0.2


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all variants have in common."""

    benchmark: str
    recipe: str
    device: str

    @property
    def preset(self) -> Benchmark:
        """The benchmark's own settings."""
        return BENCHMARKS[self.benchmark]


def configure(variant: dict[str, Any], setting: Setting) -> Config:
    """The benchmark's settings for one training a task, with what the variant changes."""
    recipe = {name: value for name, value in variant.items() if name in RECIPE_FIELDS}
    ours = {name: value for name, value in variant.items() if name in CONFIG_FIELDS}
    if unknown := set(variant) - set(recipe) - set(ours):
        raise SystemExit(f"unknown settings {sorted(unknown)}")
    plain: dict[str, Any] = {"holdout": HOLDOUT, "refit": False, "decide": 1.0, "trial": True, "target": 0.0}
    room = {"max_size": 8.0, "task_size": 1.0}  # what grows is said by `grow`
    changed = dataclasses.replace(RECIPES[setting.recipe], watch=1000, **recipe)
    return setting.preset.config.replace(device=setting.device, recipe=changed, **{**plain, **room, **ours})


def simply(name: str, variant: dict[str, Any], tasks: list[grown.Task], setting: Setting) -> dict[str, Any]:
    """Any method as it is; no target is above 0, unless the variant sets one."""
    backbone, width = variant.pop("backbone", setting.preset.backbone), variant.pop("width", 1.0)
    shape, config = tasks[0].input_shape, configure(variant, setting)

    def made(width: float, base: int | None) -> Any:
        template = make_template(backbone, shape, width, 0, config.shape)
        return grown.METHODS[name](template, config, input_shape=shape, base_parameters=base)

    method = made(width, setting.preset.base_parameters or made(1.0, None).base_parameters)
    if hasattr(method, "foresee"):
        method.foresee(tasks)
    return {"val": [method.learn(task).val for task in tasks], **_size(method)}


def _size(method: Any) -> dict[str, float]:
    size = method.size()
    return {"size_x": size.size_x, "bytes_x": size.bytes_x}


def chain(variant: dict[str, Any], tasks: list[grown.Task], setting: Setting) -> dict[str, Any]:
    """One growing network over the tasks."""
    backbone, grow = variant.pop("backbone", setting.preset.backbone), variant.pop("grow", [])
    shape, losses = tasks[0].input_shape, {}
    learner = grown.Learner(
        make_template(backbone, shape, 1.0, 0),
        configure(variant, setting),
        input_shape=shape,
        base_parameters=setting.preset.base_parameters,
        observer=lambda event: losses.update({event["task"]: event["loss"]}) if event["event"] == "epoch" else None,
    )
    found, related = [], []
    for number, task in enumerate(tasks, start=1):
        stage = learner.open(task)
        if number in grow:
            stage.expand()
        settled = algorithm.train(stage)
        found.append(settled.val.accuracy)
        related.append(stage.related.name if stage.related is not None else None)
        stage.commit(settled)
    return {"val": found, "loss": list(losses.values()), "related": related, **_size(learner)}


def whole(name: str, variant: dict[str, Any], tasks: list[grown.Task], setting: Setting) -> dict[str, Any]:
    """Runs as `grown run` makes them, on tasks whose test images are held-out ones."""
    seeds, backbone, width = variant.pop("seeds", [0]), variant.pop("backbone", None), variant.pop("width", 1.0)
    settings = tuple(f"{field}={json.dumps(value)}" for field, value in variant.items())
    runs = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            request = Request(
                benchmark=setting.benchmark,
                method=name,
                backbone=backbone,
                width=width,
                recipe=setting.recipe,
                seed=seed,
                device=setting.device,
                out=Path(folder) / "run",
                settings=settings,
            )
            runs.append(run(request, tasks=[without_test(task, seed) for task in tasks])[0])
    return {
        "val": [statistics.mean(tests) for tests in zip(*(one["accuracy_matrix"][-1] for one in runs), strict=True)],
        "averages": [one["average_accuracy"] for one in runs],
        "grew": [[task["grew"] for task in one["tasks"]] for one in runs],
        **{size: statistics.mean(one[size] for one in runs) for size in ("size_x", "bytes_x")},
    }


def without_test(task: grown.Task, seed: int) -> grown.Task:
    """The same task of its training images alone: a fifth of them in place of the test images."""
    train, test = task.hold_out(HOLDOUT, seed)
    return grown.Task(task.name, train, test, task.classes)


def main() -> None:
    """Run every variant; write after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=sorted(grown.METHODS))
    parser.add_argument("variants", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--benchmark", default="cifar100-superclass", choices=sorted(BENCHMARKS))
    parser.add_argument("--recipe", help="what the variants' recipes start from; the benchmark's own if not given")
    parser.add_argument("--whole", action="store_true", help="run the method as `grown run` does")
    parser.add_argument("--only", nargs="*", help="these variants alone")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds after which no variant begins")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = arguments.recipe or BENCHMARKS[arguments.benchmark].recipe
    setting = Setting(arguments.benchmark, recipe, arguments.device)
    stream = read_tasks(Request(benchmark=arguments.benchmark, data=arguments.data))
    results: dict[str, Any] = {}
    end = time.monotonic() + arguments.deadline
    for name, settings in json.loads(arguments.variants.read_text()).items():
        if arguments.only and name not in arguments.only:
            continue
        if time.monotonic() >= end:
            print(f"{name:28} not begun")
            continue
        began, variant = time.perf_counter(), dict(settings)
        tasks = stream[: variant.pop("tasks", 10)]
        if arguments.whole:
            found = whole(arguments.method, variant, tasks, setting)
        elif arguments.method == "grown":
            found = chain(variant, tasks, setting)
        else:
            found = simply(arguments.method, variant, tasks, setting)
        results[name] = {"settings": settings, **found, "seconds": time.perf_counter() - began}
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
        loss = f"  loss {statistics.mean(found['loss']):.3f}" if "loss" in found else ""
        sizes, seconds = f"{found['size_x']:.3f}x, {found['bytes_x']:.3f}x in all", results[name]["seconds"]
        print(f"{name:28} held-out {statistics.mean(found['val']):.2f}{loss}  {sizes}  {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
