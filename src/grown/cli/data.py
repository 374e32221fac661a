"""`grown data`: what of a data set is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grown.data import describe


def show_data(
    name: Annotated[str, typer.Argument(help="Which data set: cifar100 or digits.")],
    data: Annotated[Path | None, typer.Option(help="Where it lies; else the variable GROWN_DATA.")] = None,
) -> None:
    """Say what of a data set is there, or how to get it."""
    for line in describe(name, data):
        typer.echo(line)
