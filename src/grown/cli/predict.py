"""`grown predict`: images to labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grown.bench.request import check_device
from grown.cli.decoding import decoding
from grown.data.images import decode_all, is_image
from grown.errors import ConfigError, FileError, TaskError, unknown
from grown.methods import load
from grown.methods.grown import Learner
from grown.methods.grown.features import LEVELS
from grown.methods.grown.inference import WAYS, Answer, answer, infer, statistic

AUTO = "auto"
NONE = "none of these"


def predict_images(
    model: Annotated[Path, typer.Argument(help="A model file of grown's.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    task: Annotated[str, typer.Option(help="The task that the images are of, or auto to infer it.")],
    by: Annotated[str, typer.Option(help="How auto infers a task: features or entropy.")] = "features",
    top: Annotated[int, typer.Option(help="How many labels an image gets, the likeliest first.")] = 1,
    reject: Annotated[
        float | None,
        typer.Option(help="'none of these' for images further from a task than this share (0.5 to 0.99) of its own."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line instead of a table.")] = False,
    skip_broken: Annotated[bool, typer.Option(help="Leave out images that cannot be read.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="PyTorch's threads on the CPU.")] = None,
) -> None:
    """Label images by a task of a model; the task can be inferred, and unknown images be rejected."""
    learner = load(model)
    if not isinstance(learner, Learner):
        raise ConfigError(f"{model}: predictions are made with grown's models, but this is one of {learner.name!r}")
    _check(learner, task, by, top, reject, device)
    shape = learner.graph.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise TaskError(f"{model} takes inputs of {list(shape)} (channels first), which images cannot be converted to")
    if threads is not None:
        torch.set_num_threads(threads)
    paths = _find(images)
    errors = Console(stderr=True)
    with decoding(errors) as (tell, step):
        pixels, broken = decode_all(
            paths,
            (shape[0], shape[1], shape[2]),
            skip_broken,
            (lambda done: step("images", done, len(paths))) if step is not None else None,
        )
        if len(broken) == len(paths):
            raise FileError(f"none of these {len(paths)} images can be read, the first is {paths[0]}")
        if broken:
            tell(f"skipped {len(broken)} broken images: {', '.join(str(paths[number]) for number in broken)}")
    paths = [path for number, path in enumerate(paths) if number not in set(broken)]
    batch = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    tasks = infer(learner, batch, by, device) if task == AUTO else [task] * len(paths)
    rows = [
        _row(learner, path, found, top, reject)
        for path, found in zip(paths, answer(learner, batch, tasks, device), strict=True)
    ]
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        Console().print(_table(rows))


def _check(learner: Learner, task: str, by: str, top: int, reject: float | None, device: str) -> None:
    check_device(device)
    if task != AUTO and task not in learner.tasks:
        raise unknown("task", task, (*learner.tasks, AUTO))
    if by not in WAYS:
        raise unknown("way to infer a task", by, WAYS)
    if top < 1:
        raise ConfigError(f"--top must be at least 1, but is {top}")
    if reject is not None and not LEVELS[0] <= reject <= LEVELS[-1]:
        raise ConfigError(f"--reject is a share from {LEVELS[0]} to {LEVELS[-1]}, but is {reject}")
    if reject is not None or (task == AUTO and by == "features"):
        for name in learner.tasks if task == AUTO else [task]:
            statistic(learner, name)


def _find(given: list[Path]) -> list[Path]:
    """Files as they were given, and all images below folders in the order of their names."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            below = sorted(file for file in path.rglob("*") if is_image(file) and file.is_file())
            below = [file for file in below if not any(part.startswith(".") for part in file.relative_to(path).parts)]
            if not below:
                raise FileError(f"{path}: there are no images in this folder")
            found += below
        elif path.is_file():
            found.append(path)
        else:
            raise FileError(f"{path}: there is no such file")
    return found


def _row(learner: Learner, path: Path, found: Answer, top: int, reject: float | None) -> dict[str, Any]:
    names = learner.classes(found.task)
    order = found.probabilities.argsort(descending=True, stable=True)[:top].tolist()
    rejected = reject is not None and found.nearer is not None and found.nearer > reject
    return {
        "image": str(path),
        "task": found.task,
        "label": None if rejected else names[order[0]],
        "probability": round(float(found.probabilities[order[0]]), 6),
        "nearer": round(found.nearer, 4) if found.nearer is not None else None,
        "top": [{"label": names[k], "probability": round(float(found.probabilities[k]), 6)} for k in order],
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("image", "task", "label", "probability"):
        table.add_column(column, justify="right" if column == "probability" else "left", overflow="fold")
    for row in rows:
        label = f"{NONE} ({row['top'][0]['label']}?)" if row["label"] is None else row["label"]
        table.add_row(escape(row["image"]), escape(row["task"]), escape(label), f"{100 * row['probability']:.1f}%")
        for more in row["top"][1:]:
            table.add_row("", "", escape(more["label"]), f"{100 * more['probability']:.1f}%")
    return table
