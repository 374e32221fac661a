"""What can go wrong by the user's hand; each error is one line: the value, the rule, the choices."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GrownError(Exception):
    """Base of every error that a user can cause; the command line turns it into one line and exit code 2."""


class ConfigError(GrownError):
    """A setting is out of its range or contradicts another."""


class TemplateError(GrownError):
    """The template cannot be traced, or holds something that cannot grow."""


class TaskError(GrownError):
    """A task's data is unusable: shapes, labels, classes, values."""


class FileError(GrownError):
    """A file or folder is missing, unreadable, damaged or in the way."""


class DeviceError(GrownError):
    """A device has not enough memory for what was asked."""


class Stopped(Exception):  # noqa: N818
    """A run that was asked to stop has kept what it has; not an error."""

    code = 130  # of the process: 128 and the signal's number


def unknown(kind: str, name: str, choices: Iterable[str]) -> ConfigError:
    """An error for a name that nothing is registered under, with the nearest name and all choices."""
    known = sorted(choices)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"unknown {kind} {name!r}.{hint} Choices: {', '.join(known) or 'none'}.")
