"""Every row of the README's CIFAR-100 Superclass table: runs what is missing, and puts the results in their place.

    python benchmarks/superclass.py --data DIR --work DIR [--rows NAME ...] [--seeds 0 1 2] [--jobs 1] [--deadline S]

Scratch comes first, since its held-out accuracies are GROWN's targets; GROWN next, since Scratch at equal bytes is as
wide as its bytes allow. Run with `--jobs 1` and nothing else on the GPU for seconds that mean something; several jobs
share the GPU best under NVIDIA's MPS. A row that is done is not run again; one that was cut off is resumed.
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
from collections.abc import Callable
from pathlib import Path

from committed import RESULTS
from grown.bench.ablation import STEPS
from grown.bench.presets import BENCHMARKS
from grown.bench.runner import make_template
from grown.methods import method
from grown.nn.bank import make_banks
from grown.nn.plain import own_shapes

BENCHMARK = "cifar100-superclass"
TASKS, CLASSES, SHAPE = 20, 5, (3, 32, 32)
HERE = RESULTS / BENCHMARK
SMALL = ("--label", "small", "--set", "seed_size=0.11", "--set", "start_size=0.11", "--set", "grow=false")


def _ablation(label: str) -> list[str]:
    return ["--label", label, *(word for setting in STEPS[label] for word in ("--set", setting))]


# name -> the options behind `grown run cifar100-superclass`, and the rows that must be there first
ROWS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "scratch": (["--method", "scratch"], ()),
    "grown": ([], ("scratch",)),
    "small": ([*SMALL], ("scratch",)),
    "equal": (["--method", "scratch", "--label", "equal-bytes"], ("grown",)),
    "equal-small": (["--method", "scratch", "--label", "equal-bytes-small"], ("small",)),
    "finetune": (["--method", "finetune"], ()),
    "joint": (["--method", "joint"], ()),
    **{f"ablation-{on}": (_ablation(label), ("scratch",)) for on, label in enumerate(STEPS)},
}


def path_of(row: str, seed: int) -> Path:
    """Where a row's result is committed."""
    return HERE / f"{row}-{seed}.json"


def scratch_bytes(width: float) -> int:
    """The bytes of twenty networks of this width, headers left out."""
    preset = BENCHMARKS[BENCHMARK]
    learner = method("scratch")(make_template(preset.backbone, SHAPE, width, 0), preset.config, input_shape=SHAPE)
    training = learner.training
    banks = make_banks(training.graph.banked(), training.channels)
    weights = sum(math.prod(bank.extent(training.widths)) * bank.kernel_size for bank in banks.values())
    own = own_shapes(training.graph, training.channels, training.widths, CLASSES)
    a_weight = 2 if preset.config.kernel_format == "bf16" else 4
    return TASKS * (weights * a_weight + 4 * sum(math.prod(shape) for shape in own.values()))


def width_for(size: float) -> float:
    """The width, in thousandths, whose networks together come nearest to these bytes."""
    low, high = 1, 1000
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if scratch_bytes(middle / 1000) < size else (low, middle)
    return min((low, max(1, low - 1)), key=lambda w: abs(scratch_bytes(w / 1000) - size)) / 1000


def options(row: str, seed: int, seeds: list[int]) -> list[str]:
    """What `grown run` is asked for."""
    words = [*ROWS[row][0]]
    if row in ("grown", "small") or row.startswith("ablation"):
        words += ["--target", str(path_of("scratch", seed))]
    if row.startswith("equal"):
        source = ROWS[row][1][0]
        sizes = [json.loads(path_of(source, s).read_text())["bytes"]["total"] for s in seeds]
        words += ["--width", str(width_for(statistics.mean(sizes)))]
    return [*words, "--seed", str(seed)]


def start(row: str, seed: int, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Begin a run, or go on with it."""
    out = arguments.work / f"{row}-{seed}"
    asked = ["--resume", str(out)]
    if not (out / "run.json").is_file():
        asked = [BENCHMARK, *options(row, seed, arguments.seeds), "--device", arguments.device, "--out", str(out)]
    words = [sys.executable, "-m", "grown", "run", *asked, "--data", str(arguments.data)]
    with (arguments.work / f"{row}-{seed}.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "2"})


def finish(row: str, seed: int, work: Path) -> None:
    """Put a result in its place, and say what it is."""
    source = work / f"{row}-{seed}" / "result.json"
    if not source.is_file():
        last = (work / f"{row}-{seed}.log").read_text(errors="replace").strip().splitlines()[-1:]
        print(f"{row}, seed {seed}: failed: {last}", flush=True)
        return
    HERE.mkdir(parents=True, exist_ok=True)
    path_of(row, seed).write_bytes(source.read_bytes())
    result = json.loads(source.read_text())
    grew = sum(task["grew"] for task in result["tasks"][1:])
    print(
        f"{row:12} seed {seed}  {result['average_accuracy']:.2f}%  held-out "
        f"{statistics.mean(task['val'] for task in result['tasks']):.2f}  {result['size_x']:.3f}x  "
        f"{result['bytes_x']:.3f}x in all  grew {grew}  forgetting {result['forgetting']:g}  "
        f"{result['seconds']['total']:.0f} s (training {result['seconds']['training']:.0f})",
        flush=True,
    )


def run_all(arguments: argparse.Namespace, clock: Callable[[], float] = time.monotonic) -> None:
    """Keep so many jobs running until nothing is left that can run, or the time is over."""
    end = clock() + arguments.deadline
    todo = [(row, seed) for row in arguments.rows for seed in arguments.seeds if not path_of(row, seed).exists()]
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    while (todo or running) and clock() < end:
        ready = [
            job
            for job in todo
            if all(path_of(need, seed).exists() for need in ROWS[job[0]][1] for seed in _needed(job, arguments))
        ]
        if not ready and not running:
            print(f"not run, since what they build on is not there: {todo}")
            return
        for job in ready[: arguments.jobs - len(running)]:
            todo.remove(job)
            running[job] = start(*job, arguments)
        for job, process in list(running.items()):
            if process.poll() is not None:
                del running[job]
                finish(*job, arguments.work)
        time.sleep(0.1)
    for job, process in running.items():
        process.kill()
        print(f"{job[0]}, seed {job[1]}: cut off by the deadline; it will be resumed")


def _needed(job: tuple[str, int], arguments: argparse.Namespace) -> list[int]:
    """The seeds of what a job builds on: all of them for a mean size, its own for a target."""
    return arguments.seeds if job[0].startswith("equal") else [job[1]]


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="where the runs' folders lie")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds after which nothing goes on")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    run_all(arguments)


if __name__ == "__main__":
    main()
