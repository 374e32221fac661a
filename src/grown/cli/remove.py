"""`grown remove`: one task less."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grown.errors import ConfigError
from grown.methods import load
from grown.methods.grown import Learner
from grown.methods.grown.removal import remove


def remove_task(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    task: Annotated[str, typer.Option(help="The task to forget.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; the model itself if not given.")] = None,
) -> None:
    """Forget one task on request; all others stay identical to the last bit."""
    learner = load(model)
    if not isinstance(learner, Learner):
        raise ConfigError(f"{model}: tasks can be removed from grown's models, but this is one of {learner.name!r}")
    before = model.stat().st_size
    done = remove(learner, task)
    where = out if out is not None else model
    size = learner.save(where)
    typer.echo(f"{where}: {task} is gone, with its record and {done.freed:,} kernels; {before:,} to {size:,} bytes")
    if done.kept:
        layers = ", ".join(f"{layer} {count:,}" for layer, count in done.kept.items())
        users = ", ".join(f"{name} ({count:,})" for name, count in done.users.items())
        typer.echo(f"not erased, because other tasks use them: {sum(done.kept.values()):,} of its kernels")
        typer.echo(f"  by layer: {layers}")
        typer.echo(f"  used by: {users}")
    typer.echo(f"the other tasks are identical to the last bit: {', '.join(learner.tasks)}")
