"""A comparison as tables: tasks as rows and methods as columns, in blocks that a terminal has room for."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grown.bench.folder import write_json
from grown.bench.summary import Summary
from grown.io import files
from grown.report import page, page_compare
from grown.report.tables import protocol_note

WIDTH = 100  # columns of text
PAD = 2  # between columns
NAME = "compare"  # of the files

Column = list[str]  # its head, then a text for each row


@dataclass(frozen=True)
class Block:
    """A table that is narrow enough."""

    title: str
    columns: list[Column]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The head, then the rows."""
        return list(zip(*self.columns, strict=True))


def print_comparison(console: Console, summary: Summary) -> None:
    """The tables, then what must be known of them."""
    for block in blocks(summary, min(console.width, WIDTH)):
        console.print(f"\n{block.title}", soft_wrap=True, markup=False, highlight=False, style="bold")
        table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for number, head in enumerate(block.rows[0]):
            table.add_column(escape(head), justify="right" if number else "left")
        for row in block.rows[1:]:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    for line in remarks(summary):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def write_comparison(folder: Path, summary: Summary) -> list[Path]:
    """`compare.md`, `compare.csv` and `compare.json`."""
    paths = [folder / f"{NAME}.{ending}" for ending in ("md", "csv", "json")]
    files.write(paths[0], markdown(summary).encode())
    files.write(paths[1], as_csv(summary).encode())
    write_json(paths[2], summary)
    return paths


def write_pages(folder: Path, summary: Summary) -> list[str]:
    """`report.html` of every run that lacks one, and one of all side by side; returns what could not be made."""
    done = [folder / cell["folder"] for cell in summary["cells"] if cell["state"] == "done"]
    lacking = [run for run in done if not (run / page.FILE).exists()]
    makers: list[tuple[Path, Callable[[], object]]] = [(run, functools.partial(page.write, run)) for run in lacking]
    if done:
        makers.append((folder, lambda: files.write(folder / page.FILE, side_by_side(done))))
    problems = []
    for where, make in makers:
        try:
            make()
        except Exception as error:  # a page is made of what is there, and that is not to be lost for it
            problems.append(f"{where / page.FILE} was not made: {type(error).__name__}: {error}")
    return problems


def side_by_side(runs: list[Path]) -> bytes:
    """The page of several runs."""
    return page_compare.make(page_compare.read(runs)).encode()


def remarks(summary: Summary) -> list[str]:
    """What failed and why, then the notes."""
    said = [
        f"failed: {cell['folder']}: {cell['why']}" for cell in summary["cells"] if cell["state"] == "failed"
    ]  # fmt: skip
    if "protocol" in summary and (note := protocol_note(summary)) is not None:
        said.append(note)
    return [*said, *summary["notes"]]


def blocks(summary: Summary, width: int = WIDTH) -> list[Block]:
    """Accuracies and what they cost, then sizes after each task, then the ablation."""
    rows = summary["rows"]
    about = ", ".join(str(summary[key]) for key in ("benchmark", "backbone", "recipe") if key in summary)
    found = _blocks(f"{about}: test accuracy (%) after the last task", _accuracies(summary), width)
    found += _blocks(f"{about}: size (kernels, x) after each task", _sizes(summary), width)
    if steps := summary.get("ablation"):
        columns = _ablation(summary["tasks"], steps)
        found += _blocks(f"{about}: ablation, first accuracy (%), then points gained by each step", columns, width)
    assert rows
    return found


Groups = list[list[Column]]  # the rows' names, then for each method its column and the paper's, which stay together


def _blocks(title: str, groups: Groups, width: int) -> list[Block]:
    """As many methods a table as there is room for."""
    names, *methods = groups
    made: list[Block] = []
    taken, room = list(names), width - _width(names)
    for group in methods:
        if len(taken) > len(names) and _width(group) > room:
            made.append(Block(title, taken))
            taken, room = list(names), width - _width(names)
        taken += group
        room -= _width(group)
    return [*made, Block(title, taken)]


def _width(columns: list[Column]) -> int:
    return sum(max(len(cell) for cell in column) + PAD for column in columns)


def _accuracies(summary: Summary) -> Groups:
    rows, tasks = summary["rows"], summary["tasks"]
    is_spread = any(len(row["seeds"]) > 1 for row in rows)
    names = ["", *tasks, "average", *(["± over seeds"] if is_spread else [])]
    names += ["size (kernels)", "bytes (all)", "forgetting", "seconds", "seeds"]
    groups: Groups = [[names]]
    for row in rows:
        if row["average"] is None:
            groups.append([[row["name"], "failed", *[""] * (len(names) - 3), "0"]])
            continue
        ours = [row["name"], *(f"{value:.1f}" for value in row["tests"]), f"{row['average']['mean']:.2f}"]
        ours += [_number(row["average"]["spread"], ".2f")] if is_spread else []
        ours += [f"{row['size_x']['mean']:.3f}x", f"{row['bytes_x']['mean']:.3f}x"]
        ours += [f"{row['forgetting']['mean']:.2f}", f"{row['seconds']['mean']:.0f}", str(len(row["seeds"]))]
        groups.append([ours])
        if (paper := row["paper"]) is not None:
            theirs = ["paper", *(f"{value:.1f}" for value in paper["tests"]), f"{paper['average']:.2f}"]
            theirs += [""] if is_spread else []
            groups[-1].append([*theirs, f"{paper['sizes'][-1]:g}x", *[""] * (len(names) - len(theirs) - 1)])
    return groups


def _sizes(summary: Summary) -> Groups:
    groups: Groups = [[["after", *summary["tasks"]]]]
    for row in summary["rows"]:
        if row["sizes"] is None:
            groups.append([[row["name"], "failed", *[""] * (len(summary["tasks"]) - 1)]])
            continue
        groups.append([[row["name"], *(f"{value:.3f}x" for value in row["sizes"])]])
        if row["paper"] is not None:
            groups[-1].append(["paper", *(f"{value:g}x" for value in row["paper"]["sizes"])])
    return groups


def _ablation(tasks: list[str], steps: list[dict[str, Any]]) -> Groups:
    is_spread = any(len(step["seeds"]) > 1 for step in steps)
    names = ["", *tasks, "average", *(["± over seeds"] if is_spread else [])]
    groups: Groups = [[names]]
    for step in steps:
        form: Callable[[float], str] = "{:+.1f}".format if step["is_gain"] else "{:.1f}".format
        fine: Callable[[float], str] = "{:+.2f}".format if step["is_gain"] else "{:.2f}".format
        if step["average"] is None:
            groups.append([[step["name"], "failed", *[""] * (len(names) - 2)]])
        else:
            ours = [step["name"], *(form(value) for value in step["tests"]), fine(step["average"]["mean"])]
            groups.append([[*ours, *([_number(step["average"]["spread"], ".2f")] if is_spread else [])]])
        if (paper := step["paper"]) is not None:
            theirs = ["paper", *(form(value) for value in paper["tests"]), fine(paper["average"])]
            groups[-1].append([*theirs, *([""] if is_spread else [])])
    return groups


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def markdown(summary: Summary) -> str:
    """The same tables for a page."""
    lines: list[str] = [f"# {summary['benchmark']}: {len(summary['rows'])} settings side by side", ""]
    title = ""
    for block in blocks(summary):
        if block.title != title:
            title = block.title
            lines += [f"## {title}", ""]
        head, *rows = ([cell.replace("|", "\\|") for cell in row] for row in block.rows)
        lines += [f"| {' | '.join(head)} |", f"|---{'|--:' * (len(head) - 1)}|"]
        lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
    lines += [f"- {line}" for line in remarks(summary)]
    return "\n".join(lines).rstrip() + "\n"


CSV = ("method", "label", "seed", "state", "number", "task", "test", "paper_test", "size_x", "paper_size_x", "bytes_x")


def as_csv(summary: Summary) -> str:
    """A line for each run and task, for who makes tables of their own; sizes are those after the task."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV)
    writer.writerows(_csv_rows(summary))
    return text.getvalue()


def _csv_rows(summary: Summary) -> Iterator[list[Any]]:
    papers = {(row["method"], row["label"]): row["paper"] for row in summary["rows"]}
    for cell in summary["cells"]:
        about = [cell["method"], cell["label"], cell["seed"], cell["state"]]
        if (result := cell["result"]) is None:
            yield [*about, *[""] * (len(CSV) - len(about))]
            continue
        paper = papers[cell["method"], cell["label"]]
        for place, (task, test) in enumerate(zip(result["tasks"], result["accuracy_matrix"][-1], strict=True)):
            theirs = (paper["tests"][place], paper["sizes"][place]) if paper is not None else ("", "")
            measured = [test, theirs[0], task["size_x"], theirs[1], task["bytes_x"]]
            yield [*about, place + 1, task["name"], *measured]
