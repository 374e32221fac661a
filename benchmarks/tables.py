"""Writes the README's tables, and those of the documentation's pages, from the committed results.

    python benchmarks/tables.py [--check | --show NAME]

`--check` changes nothing and fails if a table is out of date; `--show` prints one table.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import committed
import task_seconds
from committed import RESULTS, ROOT, spread
from grown.bench import ablation, paper

NAMES = {
    ("grown", "default"): "**GROWN**",
    ("grown", "small"): "**GROWN**, small",
    ("grown", "best"): "**GROWN**, three times the epochs",
    ("scratch", "default"): "Scratch, full width",
    ("scratch", "longer"): "Scratch, full width, 120 epochs",
    ("scratch", "turns"): "Scratch, full width, rotation labels in every task",
    ("scratch", "quick"): "Scratch, VGG16 at half width, 120 epochs",
    ("scratch", "equal-bytes"): "Scratch at equal bytes",
    ("scratch", "equal-bytes-longer"): "Scratch at equal bytes, 120 epochs",
    ("scratch", "equal-bytes-turns"): "Scratch at equal bytes, rotation labels in every task",
    ("scratch", "equal-bytes-small"): "Scratch at the small one's bytes",
    ("finetune", "default"): "Fine-tune, full width",
    ("joint", "default"): "all tasks at once (joint), not continual",
    **{
        (method, "default"): name
        for method, name in {
            "grow": "Grow",
            "pnn": "PNN",
            "den": "DEN",
            "cpg": "CPG",
            "apd": "APD",
            "piggyback": "Piggyback",
            "packnet": "PackNet",
            "ksm": "KSM",
            "supsup": "SupSup",
            "wsn": "WSN",
            "adapter": "low-rank adapters",
            "replay": "replay",
            "ewc": "EWC",
            "si": "SI",
            "mas": "MAS",
            "lwf": "LwF",
            "sequential": "one network, trained on and on (sequential)",
        }.items()
    },
    ("grow", "equal-bytes"): "Grow at GROWN's bytes",
    ("pnn", "equal-bytes"): "PNN at GROWN's bytes",
    ("grown", "ablation:grow-only"): "GROWN's growth alone",
    ("grown", "ablation:+select"): "+ selective mask",
    ("grown", "ablation:+sparse"): "+ sparse growth",
    ("grown", "ablation:+retrain"): "+ released kernels trained again",
}

METHODS = ROOT / "docs" / "methods"
OTHER_BACKBONE = {("scratch", "quick")}  # as its name says


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def stream_table(folder: Path, *, count_seeds: bool = False) -> str:
    """A row for each method and label, over its seeds; nothing where there is no result."""
    found = committed.read(folder)
    groups = {key: found[key] for key in NAMES if key in found}
    committed.check_alike(run for key, runs in groups.items() if key not in OTHER_BACKBONE for run in runs)
    rows = []
    for key, runs in groups.items():
        row = {"": NAMES[key], **cells(key, runs)}
        if not count_seeds:
            del row["seeds"]
        if runs[0]["benchmark"] not in paper.ROWS:
            del row["the paper"]
        rows.append(row)
    return in_columns(rows)


def cells(key: committed.Key, runs: list[dict[str, Any]]) -> dict[str, str]:
    """What a table says of one method and label, over its seeds, by column."""
    committed.check_seeds(runs)
    return {
        "average accuracy (%)": spread([run["average_accuracy"] for run in runs], 2),
        "the paper": printed(runs[0]["benchmark"], *key),
        "seeds": str(len(runs)),
        "forgetting": forgetting(max(run["forgetting"] for run in runs)),
        "tasks that grew": tasks_that_grew(runs) if key[0] == "grown" else "",
        "size": f"{spread([run['size_x'] for run in runs], 2)}x",
        "bytes": f"{spread([run['bytes_x'] for run in runs], 2)}x",
        "seconds": seconds(runs),
    }


def in_columns(rows: list[dict[str, str]]) -> str:
    """A Markdown table of rows that all have the same columns; nothing without rows."""
    return markdown(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""


# folder of results -> what a method's page calls it
STREAMS = {
    "digits-methods": "digits",
    "cifar100-superclass": "CIFAR-100 Superclass",
    "cifar100-split": "CIFAR-100 Split",
    "cifar100-split-best": "CIFAR-100 Split, a better recipe",
    "miniimagenet-20": "mini-ImageNet",
}
PUBLISHED = "published"
AT_PUBLISHED: dict[committed.Key, str] = {
    ("grown", PUBLISHED): NAMES["grown", "default"],
    ("grown", "published-anew"): "**GROWN**, what expands begins anew",
    ("den", PUBLISHED): NAMES["den", "default"],
    ("cpg", PUBLISHED): NAMES["cpg", "default"],
}


def method_table(results: Path, method: str) -> str:
    """One method on every stream where it was run, with GROWN's accuracy beside its own."""
    rows = []
    for folder, stream in STREAMS.items():
        found = committed.read(results / folder)
        for label, name in (("default", stream), (PUBLISHED, f"{stream}, at its published schedule")):
            runs, ours = found.get((method, label), []), found.get(("grown", label), [])
            if not runs:
                continue
            committed.check_alike([*runs, *ours])
            told = cells((method, label), runs)
            beside = spread([run["average_accuracy"] for run in ours], 2) if ours else ""
            rows.append(
                {
                    "stream": name,
                    **{column: told[column] for column in ("average accuracy (%)", "the paper")},
                    **({"GROWN": beside} if method != "grown" else {}),
                    **{column: told[column] for column in ("seeds", "forgetting", "size", "bytes")},
                }
            )
    return in_columns(rows)


def published_table(results: Path) -> str:
    """GROWN, DEN and CPG, each as its authors train it: epochs, time, and the time over GROWN's."""
    found = committed.read(results)
    groups = {key: found[key] for key in AT_PUBLISHED if key in found}
    committed.check_alike(run for runs in groups.values() for run in runs)
    ours = groups.get(("grown", PUBLISHED))
    rows = []
    for key, runs in groups.items():
        told = cells(key, runs)
        if runs[0]["benchmark"] not in paper.ROWS:
            del told["the paper"]
        columns = ("average accuracy (%)", "the paper", "size", "bytes")
        rows.append(
            {
                "": AT_PUBLISHED[key],
                **{column: told[column] for column in columns if column in told},
                "epochs a task": f"{statistics.mean(epochs_of(task) for run in runs for task in run['tasks']):.0f}",
                "seconds": told["seconds"],
                "over GROWN's": "" if ours is None else f"{mean_seconds(runs)[0] / mean_seconds(ours)[0]:.1f} times",
            }
        )
    return in_columns(rows)


# what the overview says of each of the paper's streams: a column, and whose result
OVERVIEW: dict[str, committed.Key] = {
    "GROWN": ("grown", "default"),
    "Scratch at equal bytes": ("scratch", "equal-bytes"),
    "Scratch, full width": ("scratch", "default"),
}


def overview_table(results: Path) -> str:
    """Of each of the paper's streams, GROWN and Scratch: accuracy and megabytes; and the paper's GROWN."""
    rows = []
    for folder, stream in STREAMS.items():
        found = committed.read(results / folder)
        groups = {column: found.get(key, []) for column, key in OVERVIEW.items()}
        ours = groups["GROWN"]
        if not ours or ours[0]["benchmark"] not in paper.ROWS:
            continue
        committed.check_alike(run for runs in groups.values() for run in runs)
        told = {column: in_megabytes(runs) if runs else "" for column, runs in groups.items()}
        rows.append({"": stream, **told, "the paper's GROWN": printed(ours[0]["benchmark"], *OVERVIEW["GROWN"])})
    return in_columns(rows)


def in_megabytes(runs: list[dict[str, Any]]) -> str:
    """Accuracy over seeds, and the mean size of the saved file."""
    committed.check_seeds(runs)
    megabytes = statistics.mean(run["bytes"]["total"] for run in runs) / 1e6
    return f"{spread([run['average_accuracy'] for run in runs], 2)}, {megabytes:.1f} MB"


def epochs_of(task: dict[str, Any]) -> int:
    """Of all trainings of a task."""
    return sum(stage["epochs"] for stage in task["stages"])


def printed(benchmark: str, method: str, label: str) -> str:
    """What the paper has for a row: its average (that of its tasks, where it prints another) and its size."""
    if label.startswith(ablation.PREFIX) and benchmark == paper.ABLATION_STREAM:
        *first, average = paper.ABLATION[label.removeprefix(ablation.PREFIX)]
        return f"{statistics.mean(first):.2f}" if label.endswith("grow-only") else f"{average:+.1f}"
    theirs = paper.row(benchmark, method) if label in ("default", PUBLISHED) else None
    if theirs is None:
        return ""
    other = "" if abs(theirs.average - theirs.printed) < 0.06 else f", prints {theirs.printed:g}"
    return f"{theirs.average:.2f} at {theirs.sizes[-1]:g}x{other}"


def task_table(folder: Path, what: str, digits: int) -> str:
    """A number of each task (`test` once all are learned, or `size_x` after it), over seeds, the paper's below ours."""
    found = committed.read(folder)
    groups = {key: found[key] for key in NAMES if key in found and key[1] in ("default", "equal-bytes")}
    rows = []
    for key, runs in groups.items():
        told = [run["accuracy_matrix"][-1] if what == "test" else [task[what] for task in run["tasks"]] for run in runs]
        ours = [statistics.mean(values) for values in zip(*told, strict=True)]
        rows.append([NAMES[key], *(f"{value:.{digits}f}" for value in ours)])
        theirs = paper.row(runs[0]["benchmark"], key[0]) if key[1] == "default" else None
        if theirs is not None:
            numbers = theirs.tests if what == "test" else theirs.sizes
            rows.append(["*the paper's*", *(f"{value:.{digits}f}" for value in numbers)])
    return markdown(["task", *(str(number) for number in range(1, len(rows[0])))], rows) if rows else ""


def seconds(runs: list[dict[str, Any]]) -> str:
    """The mean of the runs that had the machine to themselves; where none had, in brackets, that of all."""
    mean, alone = mean_seconds(runs)
    return f"{mean:.0f}" if alone else f"({mean:.0f})"


def mean_seconds(runs: list[dict[str, Any]]) -> tuple[float, bool]:
    """The same as a number, and whether it is of runs that were alone."""
    alone = [run for run in runs if run.get("jobs", 1) == 1]
    return statistics.mean(run["seconds"]["total"] for run in alone or runs), bool(alone)


def forgetting(points: float) -> str:
    """In points; a bare 0 is exactly none."""
    return "0" if points == 0 else f"{points:.2f}" if abs(points) >= 0.005 else f"{points:.1g}"


def tasks_that_grew(runs: list[dict[str, Any]]) -> str:
    """How many of the later tasks grew, from the fewest to the most over seeds."""
    grew = [sum(task["grew"] for task in run["tasks"][1:]) for run in runs]
    low, high, later = min(grew), max(grew), len(runs[0]["tasks"]) - 1
    return f"{low} of {later}" if low == high else f"{low} to {high} of {later}"


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
    """A step against its floor, of every network that was measured."""
    measured = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("gpu_step*.json"))]
    rows = [
        [
            found["about"]["backbone"],
            f"{row['size']:g}x",
            f"{row['scratch_ms']:.2f} ms",
            f"{row['grown_ms']:.2f} ms",
            f"{row['ratio']:.2f}",
            f"{row['floor_ms']:.2f} ms",
        ]
        for found in measured
        for row in found["rows"]
    ]
    return markdown(["network", "size", "Scratch's step", "GROWN's step", "ratio", "floor"], rows)


def latency_table() -> str:
    """What an extracted network costs to run."""
    rows = [
        [
            row["network"],
            f"{row['weights']:.2f}x",
            str(row["batch"]),
            f"{row['plain_ms']:.2f} ms",
            f"{row['extracted_ms']:.2f} ms",
            f"{row['ratio']:.2f}",
            f"{row['speed_up']:.1f} times",
        ]
        for row in json.loads((RESULTS / "latency.json").read_text())["rows"]
    ]
    header = ["network", "its weights", "batch", "plain network", "extracted network", "ratio", "faster than 1x"]
    return markdown(header, rows)


def task_seconds_table() -> str:
    """What a task costs as tasks go by."""
    tasks = json.loads((RESULTS / "task_seconds.json").read_text())["tasks"]
    rows = [
        [str(task["task"]), *(f"{task[part]:.1f} s" for part in task_seconds.PARTS)]
        for task in tasks
        if task["task"] in (1, 2, 3, 10, len(tasks))
    ]
    return markdown(["task", "until its training begins", "until it is committed", "tests of all tasks so far"], rows)


PAPERS_STREAMS = ("cifar100-superclass", "cifar100-split", "cifar100-split-best", "miniimagenet-20")
README: dict[str, Callable[[], str]] = {
    "overview": partial(overview_table, RESULTS),
    "digits": partial(stream_table, RESULTS / "digits"),
    "digits-methods": partial(stream_table, RESULTS / "digits-methods"),
    "own-images": partial(stream_table, RESULTS / "own-images"),
    **{name: partial(stream_table, RESULTS / name, count_seeds=True) for name in PAPERS_STREAMS},
    "cifar100-superclass-published": partial(published_table, RESULTS / "cifar100-superclass"),
    "digits-published": partial(published_table, RESULTS / "digits-methods"),
    "masked-step": masked_step_table,
    "gpu-step": gpu_step_table,
    "latency": latency_table,
    "task-seconds": task_seconds_table,
}
TASK_BY_TASK: dict[str, Callable[[], str]] = {
    f"{name}-{kind}": partial(task_table, RESULTS / name, what, digits)
    for name in PAPERS_STREAMS
    for kind, what, digits in (("tasks", "test", 1), ("sizes", "size_x", 2))
}
TABLES = README | TASK_BY_TASK


def fill(text: str, made: Mapping[str, Callable[[], str]], file: str) -> str:
    """A page with every table made anew; one without results needs no place."""
    for name, make in made.items():
        pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        table = make()
        if not pattern.search(text):
            if not table:
                continue
            raise SystemExit(f"{file} has no place for a table: <!-- table: {name} -->, and <!-- end --> below it")
        text = pattern.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
    return text


def pages() -> dict[Path, Mapping[str, Callable[[], str]]]:
    """Which tables stand where: the README's, those of single tasks, and one on each method's page."""
    own = {path: {"results": partial(method_table, RESULTS, path.stem)} for path in sorted(METHODS.glob("*.md"))}
    return {ROOT / "README.md": README, ROOT / "docs" / "tasks.md": TASK_BY_TASK, **own}


def main() -> None:
    """Fill, check, or show."""
    if sys.argv[1:2] == ["--show"]:
        if len(sys.argv) != 3 or sys.argv[2] not in TABLES:
            sys.exit(f"--show takes one of: {', '.join(TABLES)}")
        print(TABLES[sys.argv[2]]() or "there is no result yet")
        return
    for path, made in pages().items():
        old, name = path.read_text(), str(path.relative_to(ROOT))
        new = fill(old, made, name)
        if "--check" in sys.argv and new != old:
            sys.exit(f"{name}: a table is out of date; run python benchmarks/tables.py")
        if new != old:
            path.write_text(new)


if __name__ == "__main__":
    main()
