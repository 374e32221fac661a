"""Writes the README's tables from the committed results.

    python benchmarks/tables.py [--check]

`--check` changes nothing and fails if a table is out of date.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NAMES = {
    ("grown", "default"): "**GROWN**",
    ("scratch", "default"): "Scratch, full width",
    ("scratch", "equal-bytes"): "Scratch at equal bytes",
    ("finetune", "default"): "Fine-tune, full width",
}


def spread(values: list[float], digits: int) -> str:
    """Mean and standard deviation."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def stream_table(benchmark: str) -> str:
    """A row for each method and label, over its seeds."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / benchmark).glob("*.json")):
        result = json.loads(path.read_text())
        cells.setdefault((result["method"], result["label"]), []).append(result)
    rows = []
    for key, name in NAMES.items():
        if key not in cells:
            continue
        runs = cells[key]
        grew = [sum(task["grew"] for task in run["tasks"][1:]) for run in runs]
        later = len(runs[0]["tasks"]) - 1
        rows.append(
            [
                name,
                spread([run["average_accuracy"] for run in runs], 2),
                f"{max(run['forgetting'] for run in runs):g}",
                f"{min(grew)} to {max(grew)} of {later}" if key[0] == "grown" else "",
                f"{spread([run['size_x'] for run in runs], 2)}x",
                f"{spread([run['bytes_x'] for run in runs], 2)}x",
                f"{statistics.mean(run['seconds']['total'] for run in runs):.0f}",
            ]
        )
    header = ["", "average accuracy (%)", "forgetting", "tasks that grew", "size", "bytes", "seconds"]
    return markdown(header, rows)


def masked_step_table() -> str:
    """What masks cost."""
    rows = [
        [
            f"{row['network']}, width {row['width']:g}",
            row["stage"],
            f"{row['plain_ms']:.1f} ms",
            f"{row['masked_ms']:.1f} ms",
            f"{row['ratio']:.2f}",
        ]
        for row in json.loads((RESULTS / "masked_step.json").read_text())["rows"]
    ]
    return markdown(["network", "stage", "plain step", "masked step", "ratio"], rows)


def gpu_step_table() -> str:
    """A step against its floor."""
    rows = [
        [
            f"{row['size']:g}x",
            f"{row['scratch_ms']:.2f} ms",
            f"{row['grown_ms']:.2f} ms",
            f"{row['ratio']:.2f}",
            f"{row['floor_ms']:.2f} ms",
        ]
        for row in json.loads((RESULTS / "gpu_step.json").read_text())["rows"]
    ]
    return markdown(["size", "Scratch's step", "GROWN's step", "ratio", "floor"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "digits": lambda: stream_table("digits"),
    "masked-step": masked_step_table,
    "gpu-step": gpu_step_table,
}


def fill(text: str) -> str:
    """The README with every table made anew."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"README.md has no place for the table {name!r}")
        table = make()
        text = pattern.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
    return text


def main() -> None:
    """Fill, or check."""
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = fill(old)
    if "--check" in sys.argv:
        sys.exit(0 if new == old else "README.md: a table is out of date; run python benchmarks/tables.py")
    readme.write_text(new)


if __name__ == "__main__":
    main()
