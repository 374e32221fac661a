"""What a stream of tasks came to, from its accuracy matrix: row i holds tasks 1..i after learning task i."""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """The mean over all tasks after the last one."""
    return sum(matrix[-1]) / len(matrix[-1])


def forgetting(matrix: Matrix) -> float:
    """The mean, over all tasks but the last, of the best accuracy that a task ever had minus its last one."""
    earlier = len(matrix) - 1
    if earlier == 0:
        return 0.0
    losses = [max(row[task] for row in matrix[task:]) - matrix[-1][task] for task in range(earlier)]
    return sum(losses) / earlier


def backward_transfer(matrix: Matrix) -> float:
    """The mean, over all tasks but the last, of a task's last accuracy minus its first."""
    earlier = len(matrix) - 1
    if earlier == 0:
        return 0.0
    return sum(matrix[-1][task] - matrix[task][task] for task in range(earlier)) / earlier


def forward_transfer(tests: Sequence[float], scratch: Sequence[float | None]) -> float | None:
    """The mean of a task's accuracy minus Scratch's, where all of Scratch's are known."""
    known = [value for value in scratch if value is not None]
    if len(known) != len(tests):
        return None
    return sum(test - alone for test, alone in zip(tests, known, strict=True)) / len(tests)
