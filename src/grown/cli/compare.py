"""`grown compare`: methods times seeds, one table, the paper's numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grown.bench import presets
from grown.bench.cluster import Cluster
from grown.bench.compare import Crew, Here
from grown.bench.compare import compare as run_grid
from grown.bench.grid import Grid
from grown.bench.processes import Processes
from grown.bench.request import Request
from grown.bench.summary import summarise
from grown.cli import options
from grown.cli.run import parse_target
from grown.errors import ConfigError
from grown.methods import METHODS
from grown.report.comparing import ComparisonView
from grown.report.comparison import print_comparison, write_comparison, write_pages

LOCAL = "local"  # what `--ray` without an address stands for


def compare(
    benchmark: Annotated[str, typer.Argument(help="Which stream of tasks; see `grown list`.")],
    methods: Annotated[
        str | None, typer.Option(help="Names with commas between them; all if not given, none beside --ablation.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Numbers with commas between them.")] = "0",
    ablation: Annotated[
        bool, typer.Option("--ablation", help="GROWN's growth alone, then one part after another.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Runs at once on this machine; with --ray, on one GPU.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(help="Send the runs to a Ray cluster: HOST:PORT; without an address one on this machine."),
    ] = None,
    backbone: options.Backbone = None,
    width: options.Width = 1.0,
    recipe: options.RecipeName = None,
    protocol: options.Protocol = "honest",
    target: options.TargetText = None,
    threads: Annotated[int | None, typer.Option(help="PyTorch's threads of each run; 1 if not given.")] = None,
    epochs: options.Epochs = None,
    tasks: options.Tasks = None,
    device: options.Device = "cpu",
    data: options.Data = None,
    image_size: options.ImageSize = None,
    skip_broken: options.SkipBroken = False,
    settings: options.Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the runs and tables lie; runs/compare-BENCHMARK if not given.")
    ] = None,
) -> None:
    """Run methods times seeds and put them side by side; what is done is not run again."""
    console = Console()
    base = Request(
        benchmark=benchmark,
        backbone=backbone,
        width=width,
        recipe=recipe,
        protocol=protocol,
        target=parse_target(target),
        threads=threads or presets.benchmark(benchmark).config.threads or 1,
        epochs=epochs,
        tasks=tasks,
        device=device,
        data=data,
        settings=tuple(settings or ()),
        image_size=image_size,
        skip_broken=skip_broken,
    )
    where = out if out is not None else Path("runs") / f"compare-{benchmark.replace(':', '-').replace('/', '-')}"
    chosen = split(methods) if methods is not None else () if ablation else tuple(METHODS)
    grid = Grid(base, where, chosen, parse_seeds(seeds), ablation)
    view = ComparisonView(console)
    try:
        found = run_grid(grid, crew_for(jobs, ray, view), view)
    finally:
        view.close()
    summary = summarise(found)
    written = write_comparison(where, summary)
    print_comparison(console, summary)
    problems = write_pages(where, summary)
    for line in (*problems, f"written: {', '.join(map(str, written))}"):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if found.failures:
        raise typer.Exit(1)


def crew_for(jobs: int, ray: str | None, view: ComparisonView) -> Crew:
    """Who runs the cells."""
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, but got {jobs}")
    if ray is not None:
        return Cluster(None if ray == LOCAL else ray, jobs, view)
    return Processes(jobs, view) if jobs > 1 else Here(view.of_run)


def split(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_seeds(text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(int(word) for word in split(text))
    except ValueError as error:
        raise ConfigError(f"--seeds takes whole numbers with commas between them, but got {text!r}") from error


def fill_in_ray(arguments: list[str]) -> list[str]:
    """`--ray` may stand without an address: Click knows no such option."""
    filled: list[str] = []
    for place, word in enumerate(arguments):
        filled.append(word)
        following = arguments[place + 1 : place + 2]
        if word == "--ray" and (not following or following[0].startswith("-")):
            filled.append(LOCAL)
    return filled
