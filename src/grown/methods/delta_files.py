"""`diff` and `apply` between files: what is written was verified first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grown.errors import FileError
from grown.io import container, files
from grown.io.versions import DELTA
from grown.methods.grown import delta
from grown.methods.verify import Verification, verify_content


@dataclass(frozen=True)
class Written:
    """A file that was written: its bytes, and the names of the tasks that are new."""

    size: int
    tasks: list[str]
    verified: Verification | None = None


def diff_files(old: Path, new: Path, out: Path) -> Written:
    """Write what NEW's tasks added to OLD."""
    older, newer = container.read_good(old, identify=True), container.read_good(new, identify=True)
    data = delta.diff(older, newer)
    if not (verified := verify_content(newer)).good:
        raise FileError(f"{new}: it is not sound ({verified.differences[0]}); nothing was written")
    files.write(out, data)
    return Written(len(data), [entry["name"] for entry in newer.meta["tasks"][len(older.meta["tasks"]) :]])


def apply_files(model: Path, added: Path, out: Path) -> Written:
    """Write the newer model, once every task of it was verified."""
    older, addition = container.read_good(model, identify=True), container.read_good(added, DELTA)
    data = delta.apply(older, addition)
    verified = verify_content(container.parse(data))
    if not verified.good:
        raise FileError(f"{added}: it gives a model that is not sound ({verified.differences[0]}); nothing was written")
    files.write(out, data)
    return Written(len(data), verified.tasks[len(older.meta["tasks"]) :], verified)
