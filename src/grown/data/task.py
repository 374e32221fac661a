"""One task: named classes, training images, test images; checked before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset

from grown import seeds
from grown.errors import TaskError

Pair = tuple[ArrayLike, ArrayLike]
RESIDENT_BYTES = 2**31  # images of one part that take more than this are fetched when needed, and never all at once
CHUNK = 250  # images that are fetched at a time


@dataclass(frozen=True, eq=False)
class Part:
    """Images (n, channels, height, width), or features (n, f), as uint8 or float32, and their labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image."""
        return tuple(self.images.shape[1:])

    @property
    def resident(self) -> bool:
        """Whether the images are in memory; else they are fetched when needed."""
        return True

    def fetch(self, which: Tensor) -> Tensor:
        """These images."""
        return self.images[which]

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All images in their order, so many at a time."""
        yield from torch.split(self.images, size)

    def take(self, which: Tensor) -> Part:
        """Only these."""
        return Part(self.images[which], self.labels[which])

    def to(self, device: torch.device | str) -> Part:
        """The same on another device."""
        return Part(self.images.to(device), self.labels.to(device))


class Source(Protocol):
    """Images (n, channels, height, width) that are somewhere else: an array in a mapped file, or a Dataset's."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, which: NDArray[np.int64]) -> NDArray[Any]: ...


class Streamed(Part):
    """A part whose images are fetched from their source when they are needed."""

    def __init__(self, source: Source, labels: Tensor, rows: Tensor | None = None) -> None:
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "rows", torch.arange(len(labels)) if rows is None else rows)

    source: Source
    rows: Tensor  # which of the source's images

    @property
    def images(self) -> Tensor:
        """All of them in memory, for who needs them so."""
        return self.fetch(torch.arange(len(self)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image."""
        return tuple(self.source.shape[1:])

    @property
    def resident(self) -> bool:
        """They are not in memory."""
        return False

    def fetch(self, which: Tensor) -> Tensor:
        """These images, on the CPU."""
        return torch.from_numpy(self.source[self.rows[which.cpu()].numpy()])

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All images in their order, so many at a time."""
        for which in torch.split(torch.arange(len(self)), size):
            yield self.fetch(which)

    def take(self, which: Tensor) -> Part:
        """Only these."""
        return Streamed(self.source, self.labels[which], self.rows[which])

    def to(self, device: torch.device | str) -> Part:  # noqa: ARG002
        """The same: they go to a device when they are fetched."""
        return self


def part_of(images: NDArray[Any], labels: Tensor) -> Part:
    """A part of decoded images (n, channels, height, width); one in a mapped file stays there."""
    if isinstance(images, np.memmap):
        return Streamed(images, labels)
    return Part(torch.from_numpy(images), labels)


@dataclass(frozen=True)
class Normalisation:
    """(x - mean) / deviation per channel, in the images' own units."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Images or features as the network takes them."""
        mean, deviation = self.on(images.device, images.ndim)
        return (images.float() - mean) / deviation

    def on(self, device: torch.device, dimensions: int) -> tuple[Tensor, Tensor]:
        """Mean and deviation as tensors that meet images of so many dimensions."""
        shape = (1, -1) + (1,) * (dimensions - 2)
        mean, deviation = (torch.tensor(values, device=device).view(shape) for values in (self.mean, self.deviation))
        return mean, deviation


@dataclass(frozen=True, init=False, eq=False)
class Task:
    """A classification task. `train` and `test`: (images, labels), images uint8 (n, h, w, c); or torch Datasets.

    `validation` is for a benchmark that has a validation set of its own: which training images it is (their numbers),
    or the share of them that a run's seed draws. By `--protocol paper` it decides; `honest` draws its own.
    """

    name: str
    classes: tuple[str, ...]
    train: Part = field(repr=False)
    test: Part = field(repr=False)
    validation: tuple[int, ...] | float | None = field(repr=False)

    def __init__(
        self,
        name: str,
        train: Pair | Dataset[Any] | Part,
        test: Pair | Dataset[Any] | Part,
        classes: Sequence[str] | None = None,
        validation: Sequence[int] | float | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
            raise TaskError(f"a task's name is a short printable text, but got {name!r}")
        parts = {key: _part(name, key, data) for key, data in (("train", train), ("test", test))}
        names = tuple(str(c) for c in classes) if classes is not None else _count(parts["train"].labels)
        if len(names) < 2:
            raise TaskError(f"task {name!r}: needs at least two classes, but has {len(names)}")
        if len(set(names)) != len(names):
            raise TaskError(f"task {name!r}: a class is named twice in {list(names)}")
        for key, part in parts.items():
            _check_labels(name, key, part.labels, len(names))
        if parts["train"].shape != parts["test"].shape:
            raise TaskError(
                f"task {name!r}: train images are {list(parts['train'].shape)}, "
                f"test images {list(parts['test'].shape)} (channels first)"
            )
        missing = set(range(len(names))) - set(parts["train"].labels.tolist())
        if missing:
            raise TaskError(f"task {name!r}: class {names[min(missing)]!r} has no training image")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "classes", names)
        object.__setattr__(self, "train", parts["train"])
        object.__setattr__(self, "test", parts["test"])
        object.__setattr__(self, "validation", _validation(name, parts["train"], len(names), validation))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels first, without the batch axis."""
        return self.train.shape

    def validated(self, seed: int) -> tuple[Part, Part] | None:
        """The training set as (what trains, what decides) by the benchmark's own division, if it has one."""
        if self.validation is None:
            return None
        if isinstance(self.validation, float):
            return self.hold_out(self.validation, seed)
        decides = torch.zeros(len(self.train), dtype=torch.bool)
        decides[list(self.validation)] = True
        return self.train.take((~decides).nonzero().flatten()), self.train.take(decides.nonzero().flatten())

    def hold_out(self, fraction: float, seed: int) -> tuple[Part, Part]:
        """The training set as (what trains, what decides), each class divided alike."""
        draw = seeds.generator(seed, "hold-out", self.name)
        fit, decide = [], []
        for label in range(len(self.classes)):
            members = (self.train.labels == label).nonzero().flatten()
            if len(members) < 2:
                raise TaskError(
                    f"task {self.name!r}: class {self.classes[label]!r} has {len(members)} training image; "
                    "at least 2 are needed, one of them to decide with"
                )
            members = members[torch.randperm(len(members), generator=draw)]
            count = min(len(members) - 1, max(1, round(fraction * len(members))))
            decide.append(members[:count])
            fit.append(members[count:])
        return self.train.take(torch.cat(fit).sort().values), self.train.take(torch.cat(decide).sort().values)


def measure(part: Part) -> Normalisation:
    """The mean and deviation of each channel; a constant channel is left at its scale."""
    first = part.fetch(torch.zeros(1, dtype=torch.int64))
    mean, deviation = (_of_bytes if first.ndim == 4 and first.dtype == torch.uint8 else _of_numbers)(part)
    deviation = torch.where(deviation < 1e-6, torch.ones_like(deviation), deviation)
    return Normalisation(tuple(mean.float().tolist()), tuple(deviation.float().tolist()))


def _of_bytes(part: Part) -> tuple[Tensor, Tensor]:
    """Of images: how often each value occurs says all, and bytes are counted sooner than turned into doubles."""
    counts = torch.zeros(part.shape[0], 256, dtype=torch.int64)
    for images in part.chunks(CHUNK):
        for channel, count in enumerate(counts):
            count += torch.bincount(images[:, channel].flatten(), minlength=256).cpu()
    values, pixels = torch.arange(256), len(part) * math.prod(part.shape[1:])
    totals = [(int((count * values).sum()), int((count * values.square()).sum())) for count in counts]
    mean = [total / pixels for total, _ in totals]
    deviation = [math.sqrt(squares * pixels - total**2) / pixels for total, squares in totals]  # whole numbers: exact
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(deviation, dtype=torch.float64)


def _of_numbers(part: Part) -> tuple[Tensor, Tensor]:
    """Of features, or of images in other units; those that are not in memory, a few at a time."""
    over = [0, *range(2, len(part.shape) + 1)]
    if part.resident:
        images = part.images.double()
        return images.mean(over), images.std(over, correction=0)
    total = squares = torch.zeros((), dtype=torch.float64)
    for images in part.chunks(CHUNK):
        values = images.double()
        total, squares = total + values.sum(over), squares + values.square().sum(over)
    count = len(part) * math.prod(part.shape[1:])
    mean = total / count
    return mean, (squares / count - mean.square()).clamp_min(0.0).sqrt()


def _part(task: str, key: str, data: Pair | Dataset[Any] | Part) -> Part:
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


def _validation(
    task: str, train: Part, classes: int, given: Sequence[int] | float | None
) -> tuple[int, ...] | float | None:
    if given is None:
        return None
    if isinstance(given, float | int):
        if not 0 < given < 1:
            raise TaskError(f"task {task!r}: a share of the training images validates, but got {given}")
        return float(given)
    rows = tuple(int(row) for row in given)
    if not rows or len(set(rows)) != len(rows) or not 0 <= min(rows) <= max(rows) < len(train):
        raise TaskError(f"task {task!r}: validation images are different ones of the {len(train)} training images")
    left = torch.ones(len(train), dtype=torch.bool)
    left[list(rows)] = False
    if int((train.labels[left].bincount(minlength=classes) == 0).sum()):
        raise TaskError(f"task {task!r}: a class has validation images, but none to train on")
    return rows


def _count(labels: Tensor) -> tuple[str, ...]:
    return tuple(str(label) for label in range(int(labels.max()) + 1)) if int(labels.min()) >= 0 else ()


def _check_labels(task: str, key: str, labels: Tensor, classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise TaskError(
            f"task {task!r}, {key}: labels must lie between 0 and {classes - 1}, but range from {low} to {high}"
        )
