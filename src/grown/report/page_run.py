"""One finished run, read from its folder: the result, the settings, the epochs, and who uses whose kernels."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from grown.bench import resume
from grown.errors import FileError, GrownError
from grown.methods import load
from grown.methods.grown import Learner
from grown.report.model import reuse

RESULT_KEYS = (
    "benchmark", "method", "label", "backbone", "recipe", "protocol", "seed", "base_parameters", "tasks",
    "accuracy_matrix", "average_accuracy", "forgetting", "size_x", "bytes_x", "bytes", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Structure:
    """What GROWN's tasks are made of, in kernels; tasks by their place in the stream."""

    tasks: list[str]
    used: list[list[int]]  # [task][owner up to it]: kernels in the task's network, by who trained them
    layers: list[str]
    owned: list[list[int]]  # [task][layer]: kernels that it trained
    channels: list[list[int]]  # [task][layer]: channels that it added
    left: list[int]  # [task]: kernels that it opened and left to nobody
    free: list[int]  # [task]: kernels that nobody owned when it was committed


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    folder: Path
    result: dict[str, Any]
    settings: dict[str, Any]
    events: list[dict[str, Any]] = field(repr=False)
    structure: Structure | None = field(repr=False)

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """A row per task."""
        rows: list[dict[str, Any]] = self.result["tasks"]
        return rows

    @property
    def names(self) -> list[str]:
        """The tasks' names."""
        return [row["name"] for row in self.tasks]

    @property
    def margin(self) -> float:
        """Points by which a target may be missed."""
        return float(self.config.get("margin", 0.0))

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the method."""
        found: dict[str, Any] = self.settings.get("config", {})
        return found


def read(folder: Path) -> Run:
    """Read a run that has ended."""
    if not (folder / "result.json").is_file():
        there = (folder / "run.json").is_file()
        why = f"this run has not ended; go on with: grown run --resume {folder}" if there else "there is no run here"
        raise FileError(f"{folder}: {why} (no result.json)")
    result = resume.read_json(folder / "result.json")
    missing = [key for key in RESULT_KEYS if not isinstance(result, dict) or key not in result]
    if missing or not result["tasks"]:
        raise FileError(f"{folder / 'result.json'}: this is not a result (no {missing[0] if missing else 'tasks'})")
    settings = resume.read_json(folder / "run.json") if (folder / "run.json").is_file() else {}
    structure = _structure(folder / resume.MODEL)
    if structure is not None and structure.tasks != [row["name"] for row in result["tasks"]]:
        structure = None  # the model has learned or lost tasks since
    return Run(folder, result, settings, _events(folder / "log.jsonl"), structure)


def _events(path: Path) -> list[dict[str, Any]]:
    """The events that the page draws; a line that cannot be read is none."""
    found: list[dict[str, Any]] = []
    if not path.is_file():
        return found
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if '"event": "epoch"' in line or '"event": "target"' in line:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    found.append(event)
    return found


def _structure(path: Path) -> Structure | None:
    """What the model says; None where there is none, or where it is not GROWN's."""
    if not path.is_file():
        return None
    try:
        learner = load(path)
    except GrownError:
        return None  # the page is of the result; `grown verify` says what is wrong with the model
    return measure(learner) if isinstance(learner, Learner) else None


def measure(learner: Learner) -> Structure:
    """Count kernels and channels by task and layer."""
    owned: list[list[int]] = []
    channels: list[list[int]] = []
    left: list[int] = []
    free: list[int] = []
    counts = {name: torch.bincount(bank.owner.flatten()).tolist() for name, bank in learner.banks.items()}
    before = tuple(group.width if group.fixed else 0 for group in learner.channels.groups)
    released = 0
    for record in learner.records.values():
        exist = sum(rows * columns for rows, columns in (b.extent(record.widths) for b in learner.banks.values()))
        taken = sum(sum(count[1 : record.number + 1]) for count in counts.values())
        owned.append([count[record.number] if record.number < len(count) else 0 for count in counts.values()])
        channels.append(
            [bank.extent(record.widths)[0] - bank.extent(before)[0] for bank in learner.banks.values()],
        )
        free.append(exist - taken)
        left.append(free[-1] - released + record.new_kernels["released"])
        released, before = free[-1], record.widths
    return Structure(list(learner.records), reuse(learner), list(learner.banks), owned, channels, left, free)
