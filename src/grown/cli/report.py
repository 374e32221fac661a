"""`grown report`: a run's page again, or several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grown.io import files
from grown.report import page, page_compare, page_run


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="The page to write; the run's own report.html if not given.")] = None,
) -> None:
    """Make a run's page again, or one page that puts several runs of a stream side by side."""
    where = out if out is not None else runs[0] / page.FILE if len(runs) == 1 else Path(page.FILE)
    made = page.make(page_run.read(runs[0])) if len(runs) == 1 else page_compare.make(page_compare.read(runs))
    files.write(where, made.encode())
    typer.echo(f"{where}: {where.stat().st_size:,} bytes")
