"""What a comparison came to, as plain data: `compare.json`, and what its tables are made of."""

from __future__ import annotations

import statistics
from typing import Any

from grown.bench import ablation, folder, paper
from grown.bench.compare import Comparison
from grown.bench.grid import Cell, setting_name

ABOUT = ("benchmark", "backbone", "recipe", "protocol", "device", "base_parameters")
SINGLE = ("forgetting", "size_x", "bytes_x")  # numbers of a result that are averaged over seeds

Result = dict[str, Any]
Summary = dict[str, Any]


def summarise(found: Comparison) -> Summary:
    """All of it."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    asked = found.grid.methods
    for cell in sorted(found.cells, key=lambda cell: _place(cell, asked)):
        groups.setdefault((cell.request.method, cell.request.label), []).append(cell)
    benchmark = found.grid.base.benchmark
    first = next(iter(found.results.values()), None)
    rows = [_row(key, cells, found, paper.row(benchmark, key[0])) for key, cells in groups.items()]
    summary: Summary = {
        "contract": folder.CONTRACT,
        **({key: first[key] for key in ABOUT} if first is not None else {"benchmark": benchmark}),
        "tasks": found.tasks,
        "rows": rows,
        "cells": [_cell(cell, found) for cell in found.cells],
    }
    if found.grid.ablation:
        summary["ablation"] = _ablation(found, benchmark)
    beside = [row["paper"] for row in (*rows, *summary.get("ablation", ())) if row["paper"] is not None]
    is_whole = benchmark in paper.ROWS and len(found.tasks) == len(paper.ROWS[benchmark]["grown"].tests)
    return {**summary, "notes": [*found.notes, *_paper_notes(beside, is_whole)]}


def _place(cell: Cell, asked: tuple[str, ...]) -> int:
    """Columns stand as they were asked for, though Scratch runs first."""
    return asked.index(cell.request.method) if cell.request.label == "default" else len(asked)


def spread(values: list[float]) -> dict[str, float | None]:
    """Mean, and standard deviation where there is one."""
    return {"mean": statistics.mean(values), "spread": statistics.stdev(values) if len(values) > 1 else None}


def _row(key: tuple[str, str], cells: list[Cell], found: Comparison, theirs: paper.Row | None) -> dict[str, Any]:
    """A method's setting over its seeds; its numbers are null where no run is done."""
    method, label = key
    results = [found.results[cell] for cell in cells if cell in found.results]
    count = len(found.tasks)
    row: dict[str, Any] = {
        "method": method,
        "label": label,
        "name": label.removeprefix(ablation.PREFIX) if label in ablation.STEPS else setting_name(method, label),
        "seeds": [cell.request.seed for cell in cells if cell in found.results],
        "tests": _means([result["accuracy_matrix"][-1] for result in results]),
        "sizes": _means([[task["size_x"] for task in result["tasks"]] for result in results]),
        "average": spread([result["average_accuracy"] for result in results]) if results else None,
        **{name: spread([result[name] for result in results]) if results else None for name in SINGLE},
        "seconds": spread([result["seconds"]["total"] for result in results]) if results else None,
        "paper": None,
    }
    if theirs is not None and label == "default" and count <= len(theirs.tests):
        row["paper"] = {
            "name": theirs.name,
            "tests": list(theirs.tests[:count]),
            "average": statistics.mean(theirs.tests[:count]),
            "printed_average": theirs.printed,
            "sizes": list(theirs.sizes[:count]),
        }
    return row


def _means(rows: list[list[float]]) -> list[float] | None:
    """Place by place."""
    return [statistics.mean(column) for column in zip(*rows, strict=True)] if rows else None


def _cell(cell: Cell, found: Comparison) -> dict[str, Any]:
    result = found.results.get(cell)
    return {
        "method": cell.request.method,
        "label": cell.request.label,
        "seed": cell.request.seed,
        "folder": cell.folder.name,
        "state": "done" if result is not None else "failed",
        "why": found.failures.get(cell, ""),
        "result": result,
    }


def _paper_notes(beside: list[dict[str, Any]], is_whole: bool) -> list[str]:
    """What the paper's numbers are; `beside` has what stands beside ours."""
    if not beside:
        return []
    said = [
        "Columns “paper”: what the paper prints, presumably decided on test images, with its own network and recipe; "
        "sizes over its own 1x, kernels alone. Its averages are those of its rows."
    ]
    other = [
        f"{row['name']} {row['printed_average']:g} ({row['average']:.2f})"
        for row in beside
        if abs(row["average"] - row["printed_average"]) > 0.06  # more than rounding
    ]
    if other and is_whole:
        said.append(f"It prints other averages than its rows have: {', '.join(other)}.")
    return said


def _ablation(found: Comparison, benchmark: str) -> list[dict[str, Any]]:
    """The first step's accuracy, then what each step adds, over the seeds that have both; the paper's beside it."""
    steps: list[dict[str, Any]] = []
    before: dict[int, Result] = {}
    for label in ablation.STEPS:
        now = {
            cell.request.seed: found.results[cell]
            for cell in found.cells
            if cell.request.label == label and cell in found.results
        }
        seeds = [seed for seed in now if not steps or seed in before]
        tests = [_gains(now[seed], before[seed] if steps else None) for seed in seeds]
        theirs = paper.ABLATION[label.removeprefix(ablation.PREFIX)] if benchmark == paper.ABLATION_STREAM else None
        count = len(found.tasks)
        steps.append(
            {
                "label": label,
                "name": label.removeprefix(ablation.PREFIX),
                "is_gain": bool(steps),
                "seeds": seeds,
                "tests": _means(tests),
                "average": spread([statistics.mean(row) for row in tests]) if tests else None,
                "paper": None
                if theirs is None or count >= len(theirs)
                else {
                    "name": label.removeprefix(ablation.PREFIX),
                    "tests": list(theirs[:count]),
                    "average": statistics.mean(theirs[:count]),
                    "printed_average": theirs[-1],
                },
            }
        )
        before = now
    return steps


def _gains(result: Result, before: Result | None) -> list[float]:
    """A task's accuracy, or what was added to it."""
    tests: list[float] = result["accuracy_matrix"][-1]
    return tests if before is None else [a - b for a, b in zip(tests, before["accuracy_matrix"][-1], strict=True)]
