"""The results that are committed: read, grouped by setting, and refused where they cannot stand side by side."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

Key = tuple[str, str]  # method, label
Groups = dict[Key, list[dict[str, Any]]]

SAME = ("benchmark", "backbone", "recipe", "protocol", "base_parameters")


def read(folder: Path) -> Groups:
    """Every result of a folder (not of the folders in it), by method and label, in the order of seeds."""
    groups: Groups = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        groups.setdefault((result["method"], result["label"]), []).append({**result, "file": path.name})
    return {key: sorted(runs, key=lambda run: int(run["seed"])) for key, runs in groups.items()}


def kind_of(device: str) -> str:
    """cpu or cuda, whichever of several it was."""
    return device.partition(":")[0]


def check_alike(runs: Iterable[dict[str, Any]]) -> None:
    """Refuse results of different protocols, recipes, backbones, devices or streams in one table or picture."""
    first: dict[str, Any] | None = None
    for run in runs:
        about = {name: run[name] for name in SAME} | {"device": kind_of(run["device"]), "tasks": len(run["tasks"])}
        if first is None:
            first, file = about, run["file"]
        for name, value in about.items():
            if value != first[name]:
                raise SystemExit(f"{run['file']} has {name} {value!r}, but {file} has {first[name]!r}: not comparable")


def check_seeds(runs: list[dict[str, Any]]) -> None:
    """Refuse one seed twice in what is averaged over seeds."""
    for one, other in pairwise(runs):
        if one["seed"] == other["seed"]:
            raise SystemExit(
                f"{one['file']} and {other['file']} are both {one['method']}, {one['label']}, seed {one['seed']}"
            )


def spread(values: list[float], digits: int) -> str:
    """Mean and standard deviation."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean
