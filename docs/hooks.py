"""Fills in what the program itself says, so that it cannot go stale: the commands' help, the settings' comments."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer.main

from grown.cli.main import app
from grown.config import Config, Recipe

SETTING = re.compile(r"^    (\w+): [^=]+ = (.+?)(?:  # (.+))?$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What MkDocs calls for each page."""
    for mark, text in (
        ("commands", "\n".join(describe(command) for command in commands().values())),
        ("settings of Config", settings(Config)),
        ("settings of Recipe", settings(Recipe)),
    ):
        markdown = markdown.replace(f"<!-- {mark} -->", text)
    return markdown


def settings(kind: type) -> str:
    """A table of a dataclass's fields with the comments behind them."""
    source = inspect.getsource(kind).partition("    def ")[0]
    rows = [f"| `{name}` | `{default}` | {about} |" for name, default, about in SETTING.findall(source)]
    return "\n".join(["| setting | default | what it is |", "|---|---|---|", *rows, ""])


def commands() -> dict[str, Any]:
    """The sub-commands by name."""
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = group.commands
    return found


def describe(command: Any) -> str:
    """One command: how it is called, what it does, its arguments and options."""
    parameters = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [_metavar(parameter) for parameter in parameters if parameter.param_type_name == "argument"]
    usage = " ".join(["grown", command.name, *arguments, *(["[OPTIONS]"] if len(arguments) < len(parameters) else [])])
    lines = [f"## grown {command.name}", "", f"    {usage}", "", " ".join((command.help or "").split()), ""]
    if parameters:
        lines += ["| | | default |", "|---|---|---|", *(_row(parameter) for parameter in parameters), ""]
    return "\n".join(lines)


def _metavar(argument: Any) -> str:
    name = str(argument.name).upper()
    return name if argument.required else f"[{name}]"


def _row(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    name = _metavar(parameter) if argument else " ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.required:
        default = "required"
    elif parameter.default is None or parameter.default is False or callable(parameter.default):
        default = ""
    else:
        default = f"`{parameter.default}`"
    about = str(parameter.help or "").replace("|", "\\|")
    return f"| `{name}` | {about} | {default} |"
