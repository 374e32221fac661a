"""A finished run as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grown import data

PAPER = "protocol paper: the test images took the decisions, so these accuracies are too good to be compared"
VALIDATED = "protocol paper: the benchmark's own validation images took the decisions"
EITHER = f"{PAPER}; unless the benchmark has validation images, which decided then"


def protocol_note(result: dict[str, Any]) -> str | None:
    """Who took the decisions of a run by the paper's protocol."""
    if result["protocol"] != "paper":
        return None
    return VALIDATED if result["benchmark"] in data.VALIDATED else PAPER


def decided_on(result: dict[str, Any]) -> str:
    """Which images took a run's decisions."""
    note = protocol_note(result)
    return "held-out" if note is None else "validation" if note == VALIDATED else "decided on test"


def print_result(console: Console, result: dict[str, Any]) -> None:
    """Tasks, accuracy matrix, forgetting, bytes."""
    console.print(_tasks(result))
    console.print(_matrix(result))
    size = result["bytes"]
    parts = ", ".join(f"{name.replace('_', ' ')} {size[name]:,}" for name in size if name != "total")
    transfer = result["forward_transfer"]
    lines = [
        f"average test accuracy {result['average_accuracy']:.2f}%, forgetting {result['forgetting']:g} points",
        f"size {result['size_x']:.3f}x as the paper counts (kernels), {result['bytes_x']:.3f}x with everything",
        f"{size['total']:,} bytes: {parts}",
        f"{result['seconds']['total']:.1f} s, of which training {result['seconds']['training']:.1f} s",
    ]
    if transfer is not None:
        lines.insert(1, f"against a full-size network of its own for each task (Scratch): {transfer:+.2f} points")
    if (note := protocol_note(result)) is not None:
        lines.insert(0, note)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _tasks(result: dict[str, Any]) -> Table:
    name = f"{result['benchmark']}, {result['method']}, seed {result['seed']}"
    table = Table(title=f"{name}, protocol paper" if result["protocol"] == "paper" else name, box=box.SIMPLE_HEAD)
    for column in (
        "task",
        "target",
        decided_on(result),
        "test",
        "grew",
        "new kernels",
        "size",
        "bytes",
    ):
        table.add_column(column, justify="left" if column in ("task", "grew") else "right")
    for row in result["tasks"]:
        new = row["new_kernels"]
        table.add_row(
            escape(row["name"]),
            f"{row['target']:.1f}" if row["target"] is not None else "",
            f"{row['val']:.1f}",
            f"{row['test']:.1f}",
            "yes" if row["grew"] else "no",
            f"{new['grown']} + {new['released']} released",
            f"{row['size_x']:.3f}x",
            f"{row['bytes']:,}",
        )
    return table


def _matrix(result: dict[str, Any]) -> Table:
    table = Table(title="test accuracy (%) of each task after learning ...", box=box.SIMPLE_HEAD)
    table.add_column("after")
    names = [row["name"] for row in result["tasks"]]
    for number, name in enumerate(names, start=1):
        table.add_column(str(number) if len(names) > 8 else escape(name), justify="right")
    for name, row in zip(names, result["accuracy_matrix"], strict=True):
        table.add_row(escape(name), *(f"{value:.1f}" for value in row))
    return table
