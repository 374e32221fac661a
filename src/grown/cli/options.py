"""Options that `grown run` and `grown compare` have in common: what a run is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Backbone = Annotated[str | None, typer.Option(help="A name, or package.module:function of your own.")]
Width = Annotated[float, typer.Option(help="The backbone's layers, times this; below 1 by `shape`.")]
RecipeName = Annotated[str | None, typer.Option(help="How each training runs.")]
Protocol = Annotated[str, typer.Option(help="honest: held-out training images decide; paper: the test images do.")]
TargetText = Annotated[str | None, typer.Option(help="A number, scratch, finetune, best, or a result.json.")]
Epochs = Annotated[int | None, typer.Option(help="Epochs of each training.")]
Tasks = Annotated[int | None, typer.Option(help="Only the first so many tasks.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Data = Annotated[Path | None, typer.Option(help="Where the data lies; else the variable GROWN_DATA.")]
ImageSize = Annotated[
    int | None,
    typer.Option(help="folder:PATH: the images' side in pixels, else the first task's; miniimagenet-20: resize to it."),
]
SkipBroken = Annotated[bool, typer.Option(help="folder:PATH: leave out images that cannot be read.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="NAME=VALUE of any setting, as often as you like.")
]  # fmt: skip
