"""`grown verify`: whether a model file is what it was when it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grown.methods.verify import verify


def verify_model(model: Annotated[Path, typer.Argument(help="A model file.")]) -> None:
    """Check digests, structure, owners, and every task's stored logits bit for bit; exit code 1 if any differs."""
    found = verify(model)
    for line in found.differences:
        typer.echo(f"DIFFERS  {line}")
    for line in found.close:
        typer.echo(f"close    {line}")
    close = f", {len(found.close)} to a tolerance because arithmetic differs" if found.close else ""
    typer.echo(
        f"{model}: format {found.version}, {found.tensors} tensors, {len(found.tasks)} tasks; "
        f"probes: {len(found.exact)} bit for bit{close}"
    )
    typer.echo("everything agrees" if found.good else f"{len(found.differences)} differences")
    if not found.good:
        raise typer.Exit(1)
