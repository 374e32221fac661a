"""The rows of a table: runs what is missing in the order of what builds on what, and puts the results in their place.

Targets come first: the held-out accuracies of Scratch, or where a benchmark trains on all data in the end, of a Scratch
that took all epochs on the part that is not held out. Scratch at equal bytes comes after GROWN, as wide as its bytes
allow. Every method that is registered is a row of its name. Run with `--jobs 1` and nothing else on the GPU for seconds
that mean something; several jobs share the GPU best under NVIDIA's MPS. A row that is done is not run again, unless it
was made on another kind of device; one that was cut off is resumed. A committed result says in `jobs` how many ran at
once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from committed import RESULTS, kind_of
from grown.bench.presets import BENCHMARKS
from grown.bench.request import make_template
from grown.methods import METHODS, method
from grown.nn.bank import make_banks
from grown.nn.plain import own_shapes

TARGETS = "of the table"
GRACE = 30.0  # seconds to end an epoch in, at the deadline


@dataclass(frozen=True)
class Row:
    """What is asked of `grown run` behind the benchmark's name, and what must be there first."""

    options: tuple[str, ...] = ()
    targets: str | None = None  # the row whose held-out accuracies are its targets, seed by seed; TARGETS: the table's
    bytes_of: str | None = None  # the row whose mean bytes say how wide these networks are

    @property
    def needs(self) -> tuple[str, ...]:
        """The rows that it builds on."""
        return tuple(row for row in (self.targets, self.bytes_of) if row is not None)


def settings(*given: str) -> tuple[str, ...]:
    """NAME=VALUE of the configuration or the recipe, as words of `grown run`."""
    return tuple(word for setting in given for word in ("--set", setting))


# All epochs on the part that is not held out, and nothing after that.
WHOLE = settings("refit=false", "decide=1.0", "trial=true")
COMMON = {
    "scratch": Row(("--method", "scratch")),
    "targets": Row(
        ("--method", "scratch", "--label", "targets", *WHOLE),
    ),
    "grown": Row(targets=TARGETS),
    "equal": Row(("--method", "scratch", "--label", "equal-bytes"), bytes_of="grown"),
    "finetune": Row(("--method", "finetune")),
    "joint": Row(("--method", "joint")),
}


def published(options: tuple[str, ...], cpg: tuple[str, ...] = (), anew: tuple[str, ...] = ()) -> dict[str, Row]:
    """GROWN, DEN and CPG at their published schedules, to compare times, and Scratch, whose run is their target.

    GROWN twice: its expansions go on from where reuse ended, as in the paper, or begin anew.
    """
    label, targets = ("--label", "published"), "targets-published"
    named = {
        "grown-published": (*label, *options),
        "grown-published-anew": ("--label", "published-anew", *options, *settings("anew=true"), *anew),
        "den-published": ("--method", "den", *label, *options),
        "cpg-published": ("--method", "cpg", *label, *options, *cpg),
    }
    rows = {name: Row(words, targets=targets) for name, words in named.items()}
    return {targets: Row(("--method", "scratch", *label, *options)), **rows}


@dataclass(frozen=True)
class Table:
    """One table of the README and its rows."""

    name: str  # of its folder among the results
    benchmark: str
    tasks: int
    classes: int  # of each task
    shape: tuple[int, int, int]
    more: tuple[tuple[str, Row], ...] = ()  # rows beside the common ones and the registered methods
    options: tuple[str, ...] = ()  # of every row
    targets: str = "scratch"  # the row whose held-out accuracies are the others' targets
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def rows(self) -> dict[str, Row]:
        """By name; a method that is in no other row has one of its own."""
        named = {**COMMON, **dict(self.more)}
        others = {name: Row(("--method", name), targets=TARGETS) for name in METHODS if name not in named}
        found = {**named, **others}
        return {
            name: replace(row, targets=self.targets) if row.targets == TARGETS else row for name, row in found.items()
        }

    def path_of(self, row: str, seed: int) -> Path:
        """Where a row's result is committed."""
        return RESULTS / self.name / f"{row}-{seed}.json"

    def scratch_bytes(self, width: float) -> int:
        """The bytes of a network of this width for each task, headers left out."""
        preset = BENCHMARKS[self.benchmark]
        template = make_template(preset.backbone, self.shape, width, 0, preset.config.shape)
        training = method("scratch")(template, preset.config, input_shape=self.shape).training
        banks = make_banks(training.graph.banked(), training.channels)
        weights = sum(math.prod(bank.extent(training.widths)) * bank.kernel_size for bank in banks.values())
        own = own_shapes(training.graph, training.channels, training.widths, self.classes)
        a_weight = 2 if preset.config.kernel_format == "bf16" else 4
        return self.tasks * (weights * a_weight + 4 * sum(math.prod(shape) for shape in own.values()))

    def width_for(self, size: float) -> float:
        """The width, in thousandths, whose networks together come nearest to these bytes."""
        low, high = 1, 1000
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.scratch_bytes(middle / 1000) < size else (low, middle)
        return min((low, max(1, low - 1)), key=lambda w: abs(self.scratch_bytes(w / 1000) - size)) / 1000

    def asked(self, row: str, seed: int, seeds: list[int]) -> list[str]:
        """What `grown run` is asked for."""
        mine = self.rows[row]
        words = [*mine.options, *self.options]
        if mine.targets is not None:
            words += ["--target", str(self.path_of(mine.targets, seed))]
        if mine.bytes_of is not None:
            sizes = [json.loads(self.path_of(mine.bytes_of, s).read_text())["bytes"]["total"] for s in seeds]
            words += ["--width", str(self.width_for(statistics.mean(sizes)))]
        return [*words, "--seed", str(seed)]

    def has(self, row: str, seed: int, device: str) -> bool:
        """Whether a row's result is there, made on this kind of device; one of another kind will be replaced."""
        path = self.path_of(row, seed)
        return path.exists() and kind_of(json.loads(path.read_text())["device"]) == kind_of(device)

    def is_ready(self, row: str, seed: int, seeds: list[int], device: str) -> bool:
        """Whether all is there that a run builds on: its own seed's for a target, every seed's for a mean size."""
        mine = self.rows[row]
        wanted = [(mine.targets, [seed]), (mine.bytes_of, seeds)]
        return all(self.has(need, s, device) for need, of in wanted if need is not None for s in of)


def start(
    table: Table,
    row: str,
    seed: int,
    arguments: argparse.Namespace,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Begin a run, or go on with it, with these environment variables."""
    out, log_file = _places(row, seed, arguments)
    asked = ["--resume", str(out)]
    if not (out / "run.json").is_file():
        words = table.asked(row, seed, arguments.seeds)
        asked = [table.benchmark, *words, "--device", arguments.device, "--out", str(out)]
    words = [sys.executable, "-m", "grown", "run", *asked, "--data", str(arguments.data)]
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        threads = "1" if arguments.device == "cpu" else "2"  # the same bits, however many run at once
        environment = {**os.environ, "OMP_NUM_THREADS": threads, **variables}
        return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _places(row: str, seed: int, arguments: argparse.Namespace) -> tuple[Path, Path]:
    """A run's folder and log; what began on one kind of device is not gone on with on another."""
    work = arguments.work / kind_of(arguments.device)
    return work / f"{row}-{seed}", work / f"{row}-{seed}.log"


def finish(table: Table, row: str, seed: int, arguments: argparse.Namespace) -> None:
    """Put a result in its place, with how many runs shared the machine, and say what it is."""
    out, log_file = _places(row, seed, arguments)
    source = out / "result.json"
    if not source.is_file():
        last = log_file.read_text(errors="replace").strip().splitlines()[-1:]
        print(f"{row}, seed {seed}: failed: {last}", flush=True)
        return
    path = table.path_of(row, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {**json.loads(source.read_text()), "jobs": arguments.jobs + arguments.beside}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    grew = sum(task["grew"] for task in result["tasks"][1:])
    print(
        f"{row:12} seed {seed}  {result['average_accuracy']:.2f}%  held-out "
        f"{statistics.mean(task['val'] for task in result['tasks']):.2f}  {result['size_x']:.3f}x  "
        f"{result['bytes_x']:.3f}x in all  grew {grew}  forgetting {result['forgetting']:g}  "
        f"{result['seconds']['total']:.0f} s (training {result['seconds']['training']:.0f})",
        flush=True,
    )


def run_all(table: Table, arguments: argparse.Namespace, clock: Callable[[], float] = time.monotonic) -> None:
    """Keep so many jobs running until nothing is left that can run, or the time is over."""
    end = clock() + arguments.deadline
    every = [(row, seed) for row in arguments.rows for seed in arguments.seeds]
    todo = [job for job in every if not table.has(*job, arguments.device)]
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    while (todo or running) and clock() < end:
        room = arguments.jobs - len(running)  # without it no result is read
        ready = [job for job in todo if table.is_ready(*job, arguments.seeds, arguments.device)] if room else []
        if not ready and not running:
            print(f"not run, since what they build on is not there: {todo}")
            return
        for job in ready[:room]:
            todo.remove(job)
            running[job] = start(table, *job, arguments)
        for job, process in list(running.items()):
            if process.poll() is not None:
                del running[job]
                finish(table, *job, arguments)
        time.sleep(0.1)
    stop(running, GRACE)


def stop(running: dict[tuple[str, int], subprocess.Popen[bytes]], grace: float) -> None:
    """Let every run keep what it has after its epoch. To kill one amid its kernels can make others under MPS fail."""
    end = time.monotonic() + grace  # of all of them
    for process in running.values():
        process.terminate()
    for (row, seed), process in running.items():
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        print(f"{row}, seed {seed}: stopped at the deadline; it will be resumed", flush=True)


def main(tables: dict[str, Table], about: str) -> None:
    """Run what is missing of a table; the first one unless another is asked for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="where the runs' folders lie; one for each table")
    parser.add_argument("--table", default=next(iter(tables)), choices=list(tables))
    parser.add_argument(
        "--rows", nargs="*", help=f"all of them, or some: {', '.join(next(iter(tables.values())).rows)}"
    )
    parser.add_argument("--seeds", nargs="*", type=int, help="all of the table's, or some")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--beside", type=int, default=0, help="how many other runs share the machine with these")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds after which nothing goes on")
    arguments = parser.parse_args()
    table = tables[arguments.table]
    arguments.rows = arguments.rows if arguments.rows is not None else list(table.rows)
    arguments.seeds = arguments.seeds if arguments.seeds is not None else list(table.seeds)
    if strange := [row for row in arguments.rows if row not in table.rows]:
        parser.error(f"unknown rows {strange}; choose from {', '.join(table.rows)}")
    arguments.work.mkdir(parents=True, exist_ok=True)
    run_all(table, arguments)
