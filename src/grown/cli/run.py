"""`grown run`: learn a stream of tasks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from grown.bench.request import Request, read_tasks
from grown.bench.runner import resume as resume_run
from grown.bench.runner import run as run_request
from grown.cli import options
from grown.cli.decoding import decoding
from grown.config import Target
from grown.errors import ConfigError
from grown.report import loggers, page
from grown.report.progress import view_for
from grown.report.tables import print_result


def run(
    benchmark: Annotated[str, typer.Argument(help="Which stream of tasks; see `grown list`.")] = "digits",
    method: Annotated[str, typer.Option(help="GROWN or a method that it is compared with.")] = "grown",
    backbone: options.Backbone = None,
    width: options.Width = 1.0,
    recipe: options.RecipeName = None,
    protocol: options.Protocol = "honest",
    target: options.TargetText = None,
    seed: Annotated[int, typer.Option(help="Makes a CPU run repeat bit for bit at one thread count.")] = 0,
    threads: Annotated[int | None, typer.Option(help="PyTorch's threads on the CPU.")] = None,
    epochs: options.Epochs = None,
    tasks: options.Tasks = None,
    device: options.Device = "cpu",
    data: options.Data = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; must not exist yet.")] = None,
    label: Annotated[str, typer.Option(help="Which setting this is, for tables.")] = "default",
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    image_size: options.ImageSize = None,
    skip_broken: options.SkipBroken = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard's events too.")] = False,
    logger: Annotated[
        str | None, typer.Option(help="Tell another tool: wandb, or package.module:function of your own.")
    ] = None,
    settings: options.Settings = None,
) -> None:
    """Learn a stream of tasks by growth and show that nothing was forgotten."""
    console = Console()
    request = Request(
        benchmark=benchmark,
        method=method,
        backbone=backbone,
        width=width,
        recipe=recipe,
        protocol=protocol,
        target=parse_target(target),
        seed=seed,
        threads=threads,
        epochs=epochs,
        tasks=tasks,
        device=device,
        data=data,
        out=out,
        label=label,
        settings=tuple(settings or ()),
        image_size=image_size,
        skip_broken=skip_broken,
    )
    if resume is not None and dataclasses.replace(request, data=None) != Request():
        raise ConfigError("--resume goes on with what the run was asked for; only --data may be given beside it")
    found = None
    if resume is None and request.decodes:
        with decoding(console) as (tell, step):
            found = read_tasks(request, tell, step)
    names = [*(["tensorboard"] if tensorboard else []), *([logger] if logger is not None else [])]
    feeds = [loggers.Feed(loggers.find(name)) for name in names]
    with view_for(console) as view:

        def note(event: dict[str, Any]) -> None:
            for listener in (view, *feeds):
                listener(event)

        result, folder = run_request(request, note, found) if resume is None else resume_run(resume, note, data)
    page.write(folder)
    for feed in feeds:
        feed.end(folder)
    print_result(console, result)
    console.print(f"run folder: {folder}", soft_wrap=True, markup=False, highlight=False)


def parse_target(text: str | None) -> Target | None:
    """A target as it was typed: a number, a file, or a name."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    if text.endswith(".json"):
        path = Path(text)
        if not path.is_file():
            raise ConfigError(f"--target {text}: there is no such file")
        return path
    return text
