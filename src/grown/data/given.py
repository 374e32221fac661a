"""What a user hands in as a part of a task: arrays, or a torch Dataset; checked and made a `Part`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset

from grown.data.part import RESIDENT_BYTES, Part, Source, Streamed
from grown.errors import TaskError

Pair = tuple[ArrayLike, ArrayLike]


def read_part(task: str, key: str, data: Pair | Dataset[Any] | Part) -> Part:
    """The task's images and labels under this key: "train" or "test"."""
    where = f"task {task!r}, {key}"
    images: Tensor | Source
    labels: Any
    if isinstance(data, Part):
        if len(data) == 0:
            raise TaskError(f"{where}: has no images")
        return data
    if isinstance(data, Dataset):
        images, labels = _from_dataset(where, data)
    else:
        try:
            first, second = data
        except (TypeError, ValueError) as error:
            raise TaskError(f"{where}: expected (images, labels) or a torch Dataset") from error
        images, labels = _images(where, first), second
    answers: NDArray[Any] = np.asarray(labels)
    if answers.ndim != 1 or answers.dtype.kind not in "iu":
        raise TaskError(f"{where}: labels are whole numbers in one row, but got {answers.dtype} {list(answers.shape)}")
    count = images.shape[0]
    if len(answers) != count:
        raise TaskError(f"{where}: {count} images, but {len(answers)} labels")
    if count == 0:
        raise TaskError(f"{where}: has no images")
    found = torch.from_numpy(answers.astype(np.int64))
    return Part(images, found) if isinstance(images, Tensor) else Streamed(images, found)


def _images(where: str, data: ArrayLike) -> Tensor:
    array: NDArray[Any] = np.asarray(data)
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim not in (2, 4) or 0 in array.shape[1:]:
        raise TaskError(
            f"{where}: images are (n, height, width, channels) or features (n, f), but got {list(array.shape)}"
        )
    if array.dtype != np.uint8:
        if array.dtype.kind not in "fiu":
            raise TaskError(f"{where}: images are uint8 or float, but got {array.dtype}")
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise TaskError(f"{where}: image {int(np.argwhere(~np.isfinite(array))[0][0])} holds NaN or infinity")
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.permute(0, 3, 1, 2).contiguous() if tensor.ndim == 4 else tensor


class _Items:
    """A map-style Dataset's images, read when they are asked for; it must answer the same each time."""

    def __init__(self, where: str, data: Dataset[Any], count: int) -> None:
        self._where, self._data = where, data
        self.shape = (count, *self[np.arange(1)].shape[1:])

    def __getitem__(self, which: NDArray[np.int64]) -> NDArray[Any]:
        rows = [_item(self._data, int(number))[0] for number in which]
        found: NDArray[Any] = _images(self._where, np.stack(rows)).numpy()
        return found


def _item(data: Dataset[Any], number: int) -> tuple[NDArray[Any], int]:
    """An image, channels last, and its label; image tensors are channels first, everything else channels last."""
    image, label = data[number]
    if isinstance(image, Tensor) and image.ndim == 3:
        image = image.permute(1, 2, 0)
    return np.asarray(image), int(label)


def _from_dataset(where: str, data: Dataset[Any]) -> tuple[Tensor | Source, list[int]]:
    """Read a map-style Dataset once: its labels, and its images too if they are not too large to stay in memory."""
    size = len(data)  # type: ignore[arg-type]
    rows: list[NDArray[Any]] = []
    labels, shapes, stored = [], set(), 0
    for number in range(size):
        image, label = _item(data, number)
        labels.append(label)
        shapes.add(image.shape)
        stored += image.size * (1 if image.dtype == np.uint8 else 4)
        if stored <= RESIDENT_BYTES:
            rows.append(image)
        else:
            rows.clear()
    if len(shapes) > 1:
        raise TaskError(f"{where}: images of different shapes {sorted(shapes)[:3]}")
    if stored > RESIDENT_BYTES:
        return _Items(where, data, size), labels
    return _images(where, np.stack(rows) if rows else np.zeros((0, 1))), labels
