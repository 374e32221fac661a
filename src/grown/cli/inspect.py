"""`grown inspect`: what is in a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grown.methods import load
from grown.report.model import print_model


def inspect_model(model: Annotated[Path, typer.Argument(help="A model file.")]) -> None:
    """Show a model's tasks, sizes and layers, and what was reused between tasks."""
    print_model(Console(), model, load(model))
