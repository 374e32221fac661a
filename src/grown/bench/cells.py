"""One run of a comparison in its folder: whether it is there, whether it is this one, and how it is run."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grown.bench import folder, resume, runner
from grown.bench.grid import Cell
from grown.config import is_target_file
from grown.data.folders import PREFIX
from grown.errors import FileError, GrownError, Stopped
from grown.io import files, lock
from grown.methods.base import Observer

RUN, RESULT = "run.json", "result.json"
ELSEWHERE = "choose another --out, or move that folder away"

Digests = Callable[[Cell], list[str]]


@dataclass(frozen=True)
class Ending:
    """How a run ended: done, failed or stopped; why, in one line; and for who must find the error, where it arose."""

    state: str
    why: str = ""
    trace: str = ""
    code: int = Stopped.code  # of the process that was stopped


def is_done(cell: Cell, digests: Digests) -> bool:
    """Whether the run is there and finished; what is there and is not this run is refused."""
    where = cell.folder
    if not where.exists() or _is_stillborn(where):
        return False
    if not (where / RUN).is_file():
        raise FileError(f"{where} is not a run's folder (no {RUN}); {ELSEWHERE}")
    about = resume.read_json(where / RUN)
    if not isinstance(about, dict):
        raise FileError(f"{where / RUN} does not tell of a run; {ELSEWHERE}")
    for found, words in (
        (_other_version(about), "of another version"),
        (_other_request(about, cell), "another run than is asked for"),
    ):
        if found is not None:
            raise FileError(f"{where} is {words}: {found}; {ELSEWHERE}")
    if about.get("data") != digests(cell):
        raise FileError(f"{where} learned other data than {cell.request.benchmark} has now; {ELSEWHERE}")
    return (where / RESULT).is_file() and not (where / resume.FILE).exists()


def _is_stillborn(where: Path) -> bool:
    """Whether a killed process left a folder, and nothing that it could go on with."""
    return where.is_dir() and all(path.name == lock.LOCK or path.name.endswith(files.PART) for path in where.iterdir())


def _other_version(about: dict[str, Any]) -> str | None:
    versions = about.get("versions")
    made = versions.get("grown") if isinstance(versions, dict) else None
    now = folder.versions()["grown"]
    if about.get("contract") == folder.CONTRACT and made == now:
        return None
    return f"grown {made} with results of version {about.get('contract')}, but this is {now} with {folder.CONTRACT}"


def _other_request(about: dict[str, Any], cell: Cell) -> str | None:
    """What of a request differs; data and targets may lie elsewhere by now."""
    stored, asked = about.get("request"), cell.request.to_json()
    if not isinstance(stored, dict) or stored.keys() != asked.keys() or not isinstance(stored["settings"], list):
        return "it does not say what was asked for"
    stored = {**stored, "settings": tuple(stored["settings"])}
    for key in sorted(asked.keys() - {"data", "out", "target"}):
        if _place_aside(stored[key]) != _place_aside(asked[key]):
            return f"its {key} is {stored[key]!r}, not {asked[key]!r}"
    if _target(stored["target"]) not in (_target(asked["target"]), _target(cell.own_target)):
        return f"its target is {stored['target']!r}, not {asked['target']!r}"
    return None


def _place_aside(value: Any) -> Any:
    is_folder = isinstance(value, str) and value.startswith(PREFIX)
    return PREFIX + Path(value.removeprefix(PREFIX)).name if is_folder else value


def _target(target: Any) -> Any:
    return Path(target).parts[-2:] if is_target_file(target) else target


def attempt(cell: Cell, observer: Observer | None = None) -> Ending:
    """Run a cell, or go on with it; whatever goes wrong is told, and stops nothing else."""
    try:
        _run(cell, observer)
    except GrownError as error:
        return Ending("failed", one_line(str(error)))
    except Stopped as stop:
        return Ending("stopped", str(stop).partition("; go on with")[0], code=stop.code)
    except Exception as error:
        return Ending("failed", one_line(f"{type(error).__name__}: {error}"), traceback.format_exc())
    return Ending("done")


def one_line(text: str) -> str:
    """The first line of a text, and not too much of it."""
    line = (text.strip().splitlines() or [""])[0]
    return line if len(line) <= 300 else f"{line[:297]}..."


def _run(cell: Cell, observer: Observer | None) -> None:
    where, request = cell.folder, cell.request
    if not (where / RUN).is_file():
        clear_stillborn(where)
        runner.run(request, observer)
        return
    place_target(where, request.target)
    runner.resume(where, observer, request.folder if request.folder is not None else request.data)


def clear_stillborn(where: Path) -> None:
    """Remove a folder that holds nothing."""
    if where.exists() and _is_stillborn(where):
        lock.hold(where)
        lock.release(where)
        for path in where.iterdir():
            path.unlink()
        where.rmdir()


def place_target(where: Path, target: Any) -> None:
    """Tell a run that was begun where its targets lie now."""
    about = resume.read_json(where / RUN)
    stored = about["request"]["target"]
    if is_target_file(stored) and is_target_file(target) and stored != str(target):
        about["request"]["target"] = about["config"]["target"] = str(target)
        folder.write_json(where / RUN, about)
