"""`grown data`: what of a data set is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grown.cli.decoding import decoding
from grown.data import describe


def show_data(
    name: Annotated[str, typer.Argument(help="Which data set: cifar100, miniimagenet or digits.")],
    data: Annotated[Path | None, typer.Option(help="Where it lies; else the variable GROWN_DATA.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="miniimagenet: resize images to this side; else they must have 84 pixels.")
    ] = None,
) -> None:
    """Say what of a data set is there, or how to get it; mini-ImageNet is decoded for the runs to come."""
    with decoding(Console()) as (tell, step):
        lines = describe(name, data, image_size, tell, step)
    for line in lines:
        typer.echo(line)
