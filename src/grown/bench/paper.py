"""What the paper prints: accuracies and sizes of each method on its three streams, and its ablation."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

Numbers = tuple[float, ...]

# method -> as the paper's tables call it
NAMES = {
    "scratch": "Scratch",
    "finetune": "Fine-tune",
    "pnn": "PNN",
    "grow": "Grow",
    "den": "DEN",
    "cpg": "CPG",
    "apd": "APD",
    "grown": "Ours",
}


@dataclass(frozen=True)
class Row:
    """One method's row in the tables of a stream; sizes are multiples of the paper's own 1x, kernels alone."""

    name: str  # as the paper calls the method
    stream: str  # and the stream
    tests: Numbers  # accuracy (%) of each task
    printed: float  # the average as it is printed, which is not always the row's
    sizes: Numbers  # after each task

    @property
    def average(self) -> float:
        """The mean of the row."""
        return statistics.mean(self.tests)

    @property
    def source(self) -> str:
        """Where the sizes stand."""
        return f"the paper's table “Model size on {self.stream}”, row “{self.name}”"


def _rows(text: str) -> dict[str, Numbers]:
    words = [line.split() for line in text.strip().splitlines()]
    return {name: tuple(float(value) for value in values) for name, *values in words}


def _table(stream: str, tests: str, sizes: str) -> dict[str, Row]:
    """Rows by method; behind the accuracies stands the printed average."""
    size_of = _rows(sizes)
    return {name: Row(NAMES[name], stream, row[:-1], row[-1], size_of[name]) for name, row in _rows(tests).items()}


# benchmark -> method -> its row
ROWS: dict[str, dict[str, Row]] = {
    "cifar100-superclass": _table(
        "CIFAR-100 Superclass 20 tasks",
        """
      scratch  65.8 78.4 76.6 82.4 82.2 84.6 78.6 84.8 83.4 89.4 87.8 80.2 84.4 80.2 52.0 69.4 66.4 70.0 87.2 91.2 78.8
      finetune 65.2 76.1 76.1 77.8 85.4 82.5 79.4 82.4 82.0 87.4 87.4 81.5 84.6 80.8 52.0 72.1 68.1 71.9 88.1 91.5 78.6
      grow     67.0 73.8 74.4 75.2 81.4 81.2 78.8 80.4 80.6 85.4 85.8 80.4 81.2 80.6 50.8 68.8 66.4 68.2 84.2 88.4 76.5
      den      66.4 78.0 77.4 78.8 81.6 81.8 76.0 80.4 79.8 85.0 85.2 78.8 83.2 81.6 50.4 71.2 66.8 79.4 85.0 90.2 77.4
      cpg      67.0 79.6 77.2 82.0 86.8 87.2 82.4 85.6 86.4 89.6 90.0 84.0 87.2 84.8 55.4 73.8 72.0 71.6 89.6 92.8 81.2
      grown    67.2 76.8 79.6 81.8 87.4 86.8 84.2 83.8 87.8 89.4 91.0 84.6 87.2 85.0 55.4 73.6 71.2 73.8 89.2 94.6 82.2
        """,
        """
      scratch  1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0 10.0 11.0 12.0 13.0 14.0 15.0 16.0 17.0 18.0 19.0 20.0
      finetune 1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0 10.0 11.0 12.0 13.0 14.0 15.0 16.0 17.0 18.0 19.0 20.0
      grow     0.3 0.4 0.48 0.56 0.65 0.75 0.75 0.83 0.94 0.94 1.12 1.18 1.24 1.24 1.3 1.3 1.38 1.44 1.44 1.5
      den      1.0 1.06 1.13 1.13 1.19 1.25 1.32 1.32 1.4 1.46 1.46 1.55 1.61 1.61 1.61 1.7 1.82 1.9 2.02 2.1
      cpg      1.0 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5
      grown    0.3 0.4 0.48 0.56 0.65 0.75 0.75 0.83 0.94 0.94 1.12 1.18 1.24 1.24 1.3 1.3 1.38 1.44 1.44 1.5
        """,
    ),
    "cifar100-split": _table(
        "CIFAR-100 Split 10 tasks",
        """
      scratch  62.4 57.0 67.8 64.4 67.8 67.2 68.6 67.6 61.4 69.6 63.75
      pnn      58.2 45.6 59.4 46.8 53.2 58.0 61.2 60.4 53.8 62.4 55.90
      grow     56.4 45.4 56.6 47.8 53.2 55.6 61.8 57.4 53.2 59.8 54.72
      den      61.3 49.8 60.2 49.4 54.5 57.1 64.3 62.7 55.1 66.5 58.09
      cpg      59.4 55.2 64.8 57.4 59.6 59.4 66.2 62.8 57.6 65.4 60.12
      apd      55.1 52.5 62.3 56.7 61.4 58.2 63.4 63.1 54.8 64.2 57.54
      grown    57.6 53.4 65.2 58.8 60.4 60.6 65.4 62.2 58.0 66.4 60.83
        """,
        """
      scratch  1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0 10.0
      pnn      1.0 1.08 1.16 1.24 1.32 1.4 1.48 1.54 1.62 1.7
      grow     0.5 0.64 0.78 0.86 0.92 0.99 1.06 1.16 1.24 1.3
      den      1.0 1.2 1.46 1.46 1.64 1.64 1.8 1.8 1.8 1.8
      cpg      1.0 1.3 1.3 1.3 1.3 1.3 1.3 1.3 1.3 1.3
      apd      1.0 1.05 1.1 1.13 1.16 1.19 1.23 1.26 1.28 1.3
      grown    0.5 0.64 0.78 0.78 0.84 0.9 0.9 1.1 1.15 1.2
        """,
    ),
    "miniimagenet-20": _table(
        "miniImageNet split 20 tasks",
        """
      scratch  66.0 69.2 65.4 63.2 70.6 73.0 67.0 64.6 65.8 64.4 66.2 68.2 63.2 70.0 66.2 69.6 70.2 66.8 68.6 65.2 67.5
      grow     63.8 61.8 60.0 57.4 63.6 65.2 57.0 56.4 58.4 56.0 57.4 60.6 53.8 65.4 61.8 62.8 58.4 59.4 64.0 55.8 60.1
      den      65.4 65.0 64.6 60.0 64.8 68.6 62.4 59.8 59.4 60.2 59.4 64.6 55.8 63.8 63.4 60.4 65.2 59.6 65.8 59.2 62.5
      cpg      64.6 68.6 64.2 60.4 65.0 69.2 63.8 62.6 62.2 63.4 66.0 65.2 59.8 67.0 63.2 65.8 61.6 64.0 67.4 60.4 69.3
      grown    65.8 68.2 65.4 61.6 68.8 71.2 63.8 63.6 64.2 62.8 66.4 66.2 60.6 66.0 65.2 66.8 63.2 65.6 65.8 63.4 65.4
        """,
        """
      scratch  1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0 10.0 11.0 12.0 13.0 14.0 15.0 16.0 17.0 18.0 19.0 20.0
      grow     0.35 0.44 0.52 0.6 0.65 0.65 0.73 0.8 0.88 0.95 1.14 1.14 1.22 1.28 1.28 1.34 1.4 1.4 1.45 1.5
      den      1.0 1.05 1.11 1.16 1.16 1.23 1.39 1.39 1.45 1.45 1.5 1.55 1.59 1.59 1.64 1.64 1.7 1.76 1.82 1.9
      cpg      1.0 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5 1.5
      grown    0.35 0.44 0.52 0.6 0.65 0.65 0.73 0.8 0.88 0.95 1.14 1.14 1.22 1.28 1.28 1.34 1.4 1.4 1.45 1.5
        """,
    ),
}

# The ablation on Superclass: the first row in %, then what each step adds, in points; last the printed average.
ABLATION: dict[str, Numbers] = _rows(
    """
    grow-only 67.0 73.8 74.4 75.2 81.4 81.2 78.8 80.4 80.6 85.4 85.8 80.4 81.2 80.6 50.8 68.8 66.4 68.2 84.2 88.4 76.5
    +select   +0.0 +2.0 +3.4 +4.0 +3.4 +4.2 +3.6 +2.0 +3.8 +3.0 +3.8 +3.0 +3.6 +3.4 +2.8 +4.0 +3.2 +3.8 +3.0 +3.6 +3.7
    +sparse   +0.2 +0.6 +1.0 +1.8 +1.4 +0.8 +1.2 +0.6 +2.2 +0.6 +1.0 +0.6 +2.0 +0.4 +1.4 +0.6 +0.6 +1.0 +1.4 +1.6 +1.3
    +retrain  +0 +0.4 +0.8 +0.4 +0.4 +0.6 +0.6 +0.8 +1.0 +0.4 +0.8 +0.6 +0.4 +1.2 +0.4 +0.2 +1.0 +0.8 +0.6 +1.0 +0.7
    """
)
ABLATION_STREAM = "cifar100-superclass"


def row(benchmark: str, method: str) -> Row | None:
    """The paper's row of a method on a benchmark, where there is one."""
    return ROWS.get(benchmark, {}).get(method)
