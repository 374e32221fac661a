"""`grown add`: one task more, from a folder of images."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grown.bench.request import check_device
from grown.cli.decoding import decoding
from grown.cli.run import parse_target
from grown.config import Config
from grown.data.folders import list_task, read_task
from grown.errors import ConfigError, FileError, TaskError
from grown.methods import load
from grown.methods.grown import Learner
from grown.report.progress import view_for
from grown.train.evaluate import evaluate


def add_task(
    model: Annotated[Path, typer.Argument(help="A model file of grown's.")],
    folder: Annotated[Path, typer.Argument(help="The task's folder, named as the task: its class folders inside.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; the model itself if not given.")] = None,
    target: Annotated[str | None, typer.Option(help="A number, scratch, or a result.json; else the model's.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of each training; else the model's.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="PyTorch's threads on the CPU; else the model's.")] = None,
    skip_broken: Annotated[bool, typer.Option(help="Leave out images that cannot be read.")] = False,
) -> None:
    """Teach a model one more task; the others stay identical to the last bit."""
    console = Console()
    learner, began = load(model), model.stat()
    if not isinstance(learner, Learner):
        raise ConfigError(f"{model}: tasks can be added to grown's models, but this is one of {learner.name!r}")
    where = out if out is not None else model
    _check_writable(where)
    kept = learner.config
    learner.configure(_settings(kept, target, epochs, device, threads))
    listing = list_task(folder)
    if listing.name in learner.tasks:
        raise TaskError(f"{model} has a task {listing.name!r} already; names are unique: rename the folder")
    shape = learner.graph.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise TaskError(f"{model} takes inputs of {list(shape)} (channels first), which images cannot be converted to")
    with decoding(console) as (tell, step):
        tell(
            f"images become {shape[2]} x {shape[1]} pixels, {'grey' if shape[0] == 1 else 'RGB'}, as {model} takes them"
        )
        task = read_task(listing, (shape[0], shape[1], shape[2]), skip_broken=skip_broken, tell=tell, step=step)
    with view_for(console) as view:
        learner.observer = view
        report = learner.learn(task)
    network = learner.extract(task.name).to(device)
    test = evaluate(network, task.test, learner.normalisation(task.name), device).accuracy
    learner.configure(kept)  # what was asked for this once is not what the model says of itself
    if out is None and (model.stat().st_mtime_ns, model.stat().st_size) != (began.st_mtime_ns, began.st_size):
        raise FileError(f"{model} was changed by somebody else meanwhile; nothing was written, add the task again")
    size = learner.save(where)
    wanted = f", target {report.target:.1f}" if report.target is not None else ""
    typer.echo(
        f"{where}: {task.name} added, {len(task.classes)} classes; held-out {report.val:.1f}{wanted}, test {test:.1f}; "
        f"{'grew' if report.grew else 'reused'}; {began.st_size:,} to {size:,} bytes"
    )


def _settings(config: Config, target: str | None, epochs: int | None, device: str, threads: int | None) -> Config:
    check_device(device)
    wanted = parse_target(target)
    config = config.replace(device=device)
    if wanted is not None:
        config = config.replace(target=wanted)
    if config.target in ("finetune", "best", "callable"):
        raise ConfigError(
            f"the model's target was {str(config.target)!r}, which its file alone does not give; "
            "choose another: --target scratch, a number or a result.json"
        )
    if epochs is not None:
        config = config.replace(recipe=dataclasses.replace(config.recipe, epochs=epochs))
    return config if threads is None else config.replace(threads=threads)


def _check_writable(path: Path) -> None:
    """Refuse before anything is trained."""
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise FileError(f"cannot write {path}: its folder is absent or not writable, or it is a folder itself")
