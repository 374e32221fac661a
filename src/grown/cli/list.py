"""`grown list`: what can be chosen."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from grown.bench.presets import BENCHMARKS, RECIPES
from grown.methods import METHODS
from grown.models import BACKBONES


def list_choices() -> None:
    """Show the methods, benchmarks, backbones and recipes."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("kind")
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    for name, benchmark in BENCHMARKS.items():
        table.add_row("benchmark", name, benchmark.about)
    for name, method in METHODS.items():
        table.add_row("method", name, (method.__doc__ or "").strip().splitlines()[0])
    for name, backbone in BACKBONES.items():
        table.add_row("backbone", name, (backbone.__doc__ or "").strip().splitlines()[0])
    table.add_row("backbone", "package.module:function", "your own template, made by a function without arguments")
    for name, recipe in RECIPES.items():
        about = f"{recipe.epochs} epochs, batch {recipe.batch}, {recipe.optimizer} {recipe.rate:g}, {recipe.schedule}"
        table.add_row("recipe", name, about)
    Console().print(table)
