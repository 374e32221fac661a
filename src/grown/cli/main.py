"""`grown`: the sub-commands, and one line with exit code 2 for everything that a user got wrong."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from grown.cli.add import add_task
from grown.cli.compare import compare, fill_in_ray
from grown.cli.data import show_data
from grown.cli.diff import apply_delta, diff_models
from grown.cli.export import export_task
from grown.cli.inspect import inspect_model
from grown.cli.list import list_choices
from grown.cli.predict import predict_images
from grown.cli.remove import remove_task
from grown.cli.report import report
from grown.cli.run import run
from grown.cli.verify import verify_model
from grown.errors import GrownError, Stopped

app = typer.Typer(
    help="Continual learning by growth: one network, many tasks, nothing forgotten.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run)
app.command("compare")(compare)
app.command("list")(list_choices)
app.command("inspect")(inspect_model)
app.command("verify")(verify_model)
app.command("add")(add_task)
app.command("predict")(predict_images)
app.command("remove")(remove_task)
app.command("diff")(diff_models)
app.command("apply")(apply_delta)
app.command("export")(export_task)
app.command("data")(show_data)
app.command("report")(report)


def _show_version(wanted: bool) -> None:
    if wanted:
        from grown import __version__

        typer.echo(f"grown {__version__}")
        raise typer.Exit


@app.callback()
def common(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Continual learning by growth: one network, many tasks, nothing forgotten."""


# Whether Click is a package of its own or a part of Typer depends on Typer's version; its errors are told by shape.
UsageProblem: type[Any] = [kind for kind in typer.BadParameter.__mro__ if hasattr(kind, "format_message")][-1]


INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """The entry point."""
    try:
        code = app(fill_in_ray(sys.argv[1:] if arguments is None else arguments), standalone_mode=False)
    except UsageProblem as error:
        if message := error.format_message():
            print(f"grown: {message}", file=sys.stderr)
        sys.exit(2)
    except GrownError as error:
        print(f"grown: {error}", file=sys.stderr)
        sys.exit(2)
    except Stopped as stop:
        print(f"grown: {stop}", file=sys.stderr)
        sys.exit(stop.code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # some versions of Typer return it instead
        print("grown: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
