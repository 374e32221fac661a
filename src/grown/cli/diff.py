"""`grown diff` and `grown apply`: only what new tasks added, as a file, and put onto a model again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grown.methods.delta_files import apply_files, diff_files


def diff_models(
    old: Annotated[Path, typer.Argument(help="A model file.")],
    new: Annotated[Path, typer.Argument(help="The same model with more tasks.")],
    out: Annotated[Path, typer.Option(help="The delta to write.")],
) -> None:
    """Write only what the new tasks added."""
    written = diff_files(old, new, out)
    typer.echo(f"{out}: {written.size:,} bytes for {', '.join(written.tasks)}; {new} has {new.stat().st_size:,}")


def apply_delta(
    model: Annotated[Path, typer.Argument(help="The older model that the delta was made for.")],
    delta: Annotated[Path, typer.Argument(help="A delta, as `grown diff` writes it.")],
    out: Annotated[Path, typer.Option(help="The newer model to write; may be the older one.")],
) -> None:
    """Put a delta onto its model, verify every task, and write the newer model, byte for byte as it was."""
    written = apply_files(model, delta, out)
    found = written.verified
    for line in found.close if found is not None else []:
        typer.echo(f"close    {line}")
    exact = len(found.exact) if found is not None else 0
    typer.echo(f"{out}: {written.size:,} bytes, new: {', '.join(written.tasks)}; verified: {exact} tasks bit for bit")
