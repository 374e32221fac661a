"""A model file as tables for a terminal: tasks, layers, and who reuses whose kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grown.methods.cpg import CPG
from grown.methods.grown import Learner
from grown.report.tables import EITHER


def print_model(console: Console, path: Path, learner: Any) -> None:
    """Everything that is worth knowing of a model."""
    size = learner.size()
    parts = ", ".join(f"{name.replace('_', ' ')} {size.bytes[name]:,}" for name in size.bytes if name != "total")
    tasks = learner.tasks
    console.print(f"{path}: {len(tasks)} tasks, {size.bytes['total']:,} bytes", highlight=False, markup=False)
    console.print(f"by part, in bytes: {parts}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{size.size_x:.3f}x in kernels, {size.bytes_x:.3f}x in all, of {size.base_parameters:,} fp32 weights",
        highlight=False,
    )
    if learner.config.protocol == "paper":
        console.print(EITHER, highlight=False, markup=False, soft_wrap=True)
    if isinstance(learner, Learner):
        for table in (tasks_table(learner), layers_table(learner), reuse_table(learner)):
            console.print(table)
    else:
        console.print(f"tasks, {learner.layout}: {', '.join(tasks)}", markup=False, highlight=False)
    if isinstance(learner, CPG):
        console.print(weights_table(learner))


def tasks_table(learner: Learner) -> Table:
    """A row per task."""
    table = Table(title="tasks", box=box.SIMPLE_HEAD)
    for column in ("task", "classes", "target", "held-out", "grew", "own kernels", "picked", "channels"):
        table.add_column(column, justify="left" if column in ("task", "grew") else "right")
    used = reuse(learner)
    for number, (name, record) in enumerate(learner.records.items()):
        own, picked = used[number][number], sum(used[number][:number])
        table.add_row(
            escape(name),
            str(len(record.classes)),
            f"{record.target:.1f}" if record.target is not None else "",
            f"{record.val:.1f}" if record.val is not None else "",
            "yes" if record.grew else "no",
            f"{own:,}",
            f"{picked:,}",
            f"{sum(record.narrow()):,}",
        )
    return table


def weights_table(learner: CPG) -> Table:
    """A row per task: its own weights, and those that it picked out of those that it could pick."""
    table = Table(title="weights", box=box.SIMPLE_HEAD)
    for column in ("task", "own", "picked", "of earlier tasks'", "channels"):
        table.add_column(column, justify="left" if column == "task" else "right")
    for number, name in enumerate(learner.tasks, start=1):
        widths = learner.widths_of(name)
        counts = learner.elements.histogram(widths)
        used = sum(int(flags.sum()) for _, flags in learner.used(name).values())
        earlier = sum(counts[1:number])
        row = (counts[number], used - counts[number], earlier, sum(widths))
        table.add_row(escape(name), *(f"{count:,}" for count in row))
    return table


def layers_table(learner: Learner) -> Table:
    """A row per layer: its kernels and how many are owned."""
    table = Table(title="layers", box=box.SIMPLE_HEAD)
    for column in ("layer", "kernels", "owned", "released", "weights a kernel"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for name, bank in learner.banks.items():
        rows, columns = bank.shape
        owned = bank.owned()
        free = rows * columns - owned
        table.add_row(escape(name), f"{rows} x {columns}", f"{owned:,}", f"{free:,}", str(bank.kernel_size))
    return table


def reuse_table(learner: Learner) -> Table:
    """Row i, column j: kernels of task j that task i uses."""
    table = Table(title="kernels that a task uses, by who trained them", box=box.SIMPLE_HEAD)
    table.add_column("task")
    names = list(learner.records)
    for number, name in enumerate(names, start=1):
        table.add_column(str(number) if len(names) > 8 else escape(name), justify="right")
    for name, row in zip(names, reuse(learner), strict=True):
        table.add_row(escape(name), *(f"{count:,}" for count in row))
    return table


def reuse(learner: Learner) -> list[list[int]]:
    """For each task, how many kernels of each task up to it its network uses."""
    numbers = [record.number for record in learner.records.values()]
    table = []
    for record in learner.records.values():
        counts = torch.zeros(max(numbers) + 1, dtype=torch.int64)
        for name, bank in learner.banks.items():
            owners = bank.read(learner.widths, record.widths)[1][record.active[name]]
            counts += torch.bincount(owners.to(torch.int64), minlength=len(counts))
        table.append([int(counts[number]) for number in numbers if number <= record.number])
    return table
