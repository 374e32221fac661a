"""Rows of several tables on one GPU at once, in lanes; see rows.py.

    python benchmarks/lanes.py --data DIR --work DIR [--deadline S] "miniimagenet/den/0" "superclass/pnn/0 split/apd/0"

A lane makes its rows (TABLE/ROW/SEED,SEED) one after another, while the others make theirs; a row waits for what it
builds on. Under NVIDIA's MPS the first lane goes before the others, so give it what takes longest: they take what it
leaves idle.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import miniimagenet
import rows
import split
import superclass

TABLES = {
    "superclass": superclass.TABLE,
    "miniimagenet": miniimagenet.TABLE,
    "split": split.TABLES["parity"],
    "split-best": split.TABLES["best"],
}
LATER = {"CUDA_MPS_CLIENT_PRIORITY": "1"}  # below normal


class Job(NamedTuple):
    """One run of a row."""

    table: rows.Table
    row: str
    seed: int

    def is_done(self, device: str) -> bool:
        """Whether its result is there."""
        return self.table.has(self.row, self.seed, device)

    def is_ready(self, device: str) -> bool:
        """Whether all that it builds on is there."""
        return self.table.is_ready(self.row, self.seed, list(self.table.seeds), device)

    @property
    def name(self) -> tuple[str, int]:
        """What it is called in what is printed."""
        return f"{self.table.name} {self.row}", self.seed


def read_lane(words: str) -> list[Job]:
    """The jobs of TABLE/ROW/SEEDS words."""
    jobs = []
    for word in words.split():
        if word.count("/") != 2:
            raise ValueError(f"{word}: a run is TABLE/ROW/SEEDS, as in split/scratch/0,1")
        table, row, seeds = word.split("/")
        if table not in TABLES:
            raise ValueError(f"{word}: unknown table; choose from {', '.join(TABLES)}")
        if row not in TABLES[table].rows:
            raise ValueError(f"{word}: unknown row; choose from {', '.join(TABLES[table].rows)}")
        if not all(seed.isdecimal() for seed in seeds.split(",")):
            raise ValueError(f"{word}: seeds are numbers with commas between them, as in {table}/{row}/0,1")
        jobs += [Job(TABLES[table], row, int(seed)) for seed in seeds.split(",")]
    return jobs


def run_lanes(lanes: Sequence[Sequence[Job]], arguments: argparse.Namespace) -> None:
    """Keep every lane running until nothing is left that can run, or the time is over."""
    end = time.monotonic() + arguments.deadline
    waiting = [deque(job for job in lane if not job.is_done(arguments.device)) for lane in lanes]
    running: dict[int, tuple[Job, subprocess.Popen[bytes]]] = {}
    while time.monotonic() < end:
        for number, lane in enumerate(waiting):
            if number not in running and lane and lane[0].is_ready(arguments.device):
                job = lane.popleft()
                running[number] = (job, rows.start(*job, _for(job, arguments, len(lanes)), LATER if number else {}))
        if not running:
            break
        for number, (job, process) in list(running.items()):
            if process.poll() is not None:
                del running[number]
                rows.finish(*job, _for(job, arguments, len(lanes)))
        time.sleep(0.1)
    rows.stop({job.name: process for job, process in running.values()}, rows.GRACE)
    if left := [job.name for lane in waiting for job in lane]:
        print(f"not begun: {left}")


def _for(job: Job, arguments: argparse.Namespace, lanes: int) -> argparse.Namespace:
    """What a run of this job is told; each table has a folder of its own."""
    work = arguments.work / job.table.name
    work.mkdir(parents=True, exist_ok=True)
    own = {"work": work, "seeds": list(job.table.seeds), "jobs": lanes, "beside": 0}
    return argparse.Namespace(**{**vars(arguments), **own})


def main() -> None:
    """Run what is missing of some rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lanes", nargs="+", help="TABLE/ROW/SEEDS, as many as there are in it")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="where the runs' folders lie")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds after which nothing goes on")
    arguments = parser.parse_args()
    try:
        lanes = [read_lane(words) for words in arguments.lanes]
    except ValueError as error:
        parser.error(str(error))
    run_lanes(lanes, arguments)


if __name__ == "__main__":
    main()
