"""What a task costs as tasks go by, out of the log of a run that had the machine to itself.

python benchmarks/task_seconds.py WORK/grown-0/log.jsonl [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

# what is counted -> the event that ends it; each begins where the one before it ends
PARTS = {"opening": "stage", "learning": "committed", "testing": "tested"}


def read(log: Path) -> list[dict[str, Any]]:
    """For each task the seconds until its first stage, then to its commit, then to the tests of all tasks so far."""
    tasks: list[dict[str, Any]] = []
    last = 0.0
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "task":
            tasks.append({"task": event["number"]})
            last = event["seconds"]
        for part, end in PARTS.items():
            if event["event"] == end and part not in tasks[-1]:
                tasks[-1][part] = round(event["seconds"] - last, 3)
                last = event["seconds"]
    return tasks


def main() -> None:
    """Read, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tasks = read(arguments.log)
    for task in tasks:
        print("  ".join(f"{name} {value:g}" for name, value in task.items()))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"tasks": tasks}, indent=1) + "\n")


if __name__ == "__main__":
    main()
