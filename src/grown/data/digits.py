"""The embedded stream: real 8x8 handwritten digits in seven tasks.

The first tasks are alike, so that later ones can pick what earlier ones learned; the others see the same digits
turned, or with their pixels shuffled, where little can be reused. Each image is on one side of the train/test split in
all tasks, whatever was done to it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grown.data.task import Task

LOW, HIGH = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)

# name, digits, view
PLAN: tuple[tuple[str, tuple[int, ...], str], ...] = (
    ("low", LOW, "upright"),
    ("high", HIGH, "upright"),
    ("even", (0, 2, 4, 6, 8), "upright"),
    ("low-turned", LOW, "turned"),
    ("high-shuffled", HIGH, "shuffled"),
    ("odd", (1, 3, 5, 7, 9), "upright"),
    ("high-turned", HIGH, "turned"),
)
TEST_SHARE = 0.3


def digits_stream() -> list[Task]:
    """The seven tasks, always the same."""
    images, labels = load_digits()
    is_test = _split(labels)
    return [_task(name, wanted, view, images, labels, is_test) for name, wanted, view in PLAN]


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """1797 images (n, 8, 8) with values 0 to 16, and their digits."""
    with (
        (files("grown.data") / "digits.npz").open("rb") as handle,
        np.load(handle, allow_pickle=False) as data,
    ):
        return data["images"], data["labels"]


def view_of(images: NDArray[Any], view: str) -> NDArray[Any]:
    """The images upright, turned by a quarter, or with one fixed shuffle of their pixels."""
    if view == "turned":
        return np.rot90(images, axes=(1, 2))
    if view == "shuffled":
        order = np.random.default_rng(7).permutation(64)
        return images.reshape(-1, 64)[:, order].reshape(-1, 8, 8)
    return images


def _split(labels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    draw = np.random.default_rng(0)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        members = draw.permutation(np.flatnonzero(labels == digit))
        is_test[members[: round(TEST_SHARE * len(members))]] = True
    return is_test


def _task(
    name: str,
    wanted: tuple[int, ...],
    view: str,
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    is_test: NDArray[np.bool_],
) -> Task:
    mine = np.isin(labels, wanted)
    seen = np.ascontiguousarray(view_of(images, view))
    local = np.searchsorted(np.array(wanted), labels)
    train, test = mine & ~is_test, mine & is_test
    return Task(
        name,
        train=(seen[train], local[train]),
        test=(seen[test], local[test]),
        classes=[str(digit) for digit in wanted],
    )
