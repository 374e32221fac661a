"""Thousands of mutated files: each is refused in one line or used, in little time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import grown
from fuzzing import fuzz
from helpers import make_task, quick


def test_mutated_files_are_refused_or_used() -> None:
    ends = fuzz(700, seed=0)
    assert ends["FileError"] > 400
    assert ends["loaded"] > 10  # some changes are harmless: the mutations are not all of the crudest kind


@pytest.mark.slow
def test_ten_thousand_mutated_files_are_refused_or_used() -> None:
    ends = fuzz(10_000, seed=1)
    assert sum(ends.values()) == 10_000
    assert ends["loaded"] > 100


MEMORY = """
import random, sys, torch
torch.set_num_threads(1)
import fuzzing
from grown.io import container
from grown.io.versions import MODEL

def status(key):
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))

data = open(sys.argv[1], "rb").read()
old = container.parse(data)
for _ in range(3):
    fuzzing.use(data, MODEL, old, verify=False)  # what is imported and pooled once
worst = 0.0
for number in range(int(sys.argv[2])):
    mutated = fuzzing.mutate(random.Random(f"memory-{number}"), data, MODEL)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak counts from now
    before = status("VmRSS")
    fuzzing.use(mutated, MODEL, old, verify=False)
    worst = max(worst, (status("VmHWM") - before) / len(data))
print(worst)
"""


def large_model(path: Path) -> int:
    """Two tasks that own nearly all of a network of a million weights."""
    torch.manual_seed(0)
    template = nn.Sequential(nn.Flatten(), *(layer for _ in range(4) for layer in (nn.LazyLinear(512), nn.ReLU())))
    template.append(nn.LazyLinear(3))
    template(torch.zeros(1, 1, 8, 8))
    sizes = {"seed_size": 1.0, "start_size": 1.0, "max_size": 2.0}
    learner = grown.Learner(template, quick(growth="open", sparse=False, **sizes))
    for number in range(2):
        learner.open(make_task(f"t{number}")).commit(target=0.0)
    return learner.save(path)


def measure(path: Path, count: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path), str(count)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.slow
def test_memory_in_all_is_bounded_by_the_file(tmp_path: Path) -> None:
    """As the system counts it: the process's largest size while a mutated file is read, against the file's."""
    size = large_model(tmp_path / "m")
    assert size > 2_000_000
    worst = measure(tmp_path / "m", 300)
    print(f"at most {worst:.2f} times the file")
    assert worst < 4
