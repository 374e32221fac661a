"""`grown export`: one task's network for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grown.io.export import export
from grown.methods import load


def export_task(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    task: Annotated[str, typer.Option(help="Whose network.")],
    out: Annotated[Path, typer.Option(help="The file to write, *.onnx or *.pt2.")],
    form: Annotated[str | None, typer.Option("--format", help="onnx or pt2; by the file's name if not given.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write one task's network as ONNX or for torch.export, with its normalisation, checked against the network."""
    done = export(load(model), task, out, form, force=force)
    takes = done.about["input"]
    typer.echo(f"{out}: {done.size:,} bytes; logits agree to {done.worst:.2g}, where {done.allowed:.2g} is allowed")
    shape = ", ".join(str(size) for size in takes["shape"])
    typer.echo(f"takes {takes['name']}, {takes['type']} ({shape}), {takes['units']}")
    typer.echo(f"gives {done.about['output']['name']} for {', '.join(done.about['classes'])}")
