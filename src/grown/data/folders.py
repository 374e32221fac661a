"""Image folders as tasks: PATH/<task>/<class>/<image>, or PATH/<task>/<train|test>/<class>/<image>."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from grown import seeds
from grown.data import cache
from grown.data.images import Shape, is_image, look
from grown.data.part import RESIDENT_BYTES, Part, part_of
from grown.data.task import Task
from grown.errors import ConfigError, FileError, TaskError

PREFIX = "folder:"
LAYOUT = "PATH/<task>/<class>/<image> or PATH/<task>/<train|test>/<class>/<image>"
TEST_SHARE = 0.2  # of each class, where there is no test folder
LARGEST_SIDE = 64  # that is chosen where no size is asked for
MOST_NAMED = 5  # files in one line
SAMPLE = 1000  # images of a task that are looked at before sizes and colours are chosen

Tell = Callable[[str], None]
Step = Callable[[str, int, int], None]  # task, images done, images in all


@dataclass(frozen=True)
class Listing:
    """A task's files, before any of them is opened: training images first."""

    name: str
    folder: Path
    classes: tuple[str, ...]
    paths: list[Path]
    labels: list[int]
    train: int  # how many of them train
    ignored: int  # files that are no images


def folder_stream(
    root: str | Path,
    image_size: int | None = None,
    *,
    skip_broken: bool = False,
    tell: Tell | None = None,
    step: Step | None = None,
) -> list[Task]:
    """The tasks of a folder in the order of their names.

    Images become squares of `image_size` pixels, by default of the first task's most common size. What was decided is
    told to `tell`, line by line, and how far the decoding came to `step`.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise FileError(f"{folder}: there is no such folder; expected {LAYOUT}")
    found = [list_task(path) for path in _folders(folder)]
    if not found:
        raise FileError(f"{folder}: it has no task folders; expected {LAYOUT}")
    shape = choose_shape(found, image_size, tell or _silent)
    return [read_task(listing, shape, skip_broken=skip_broken, tell=tell, step=step) for listing in found]


def list_task(folder: Path) -> Listing:
    """What is in one task's folder; refused where no task can be made of it."""
    name = _name(folder.resolve())
    if not folder.is_dir():
        raise FileError(f"{folder}: there is no such folder; expected a task's, {LAYOUT}")
    inside = _folders(folder)
    divided = [path for path in inside if path.name in ("train", "test") and _folders(path)]
    if not divided:
        classes, ignored = _classes(name, folder, inside)
        train, test = _divide(name, classes)
        return _listing(name, folder, train, test, ignored)
    if other := [path for path in inside if path not in divided]:
        raise TaskError(f"task {name!r}: beside train and test there is {other[0].name!r}; expected {LAYOUT}")
    if divided[-1].name != "train":
        raise TaskError(f"task {name!r}: it has a test folder, but no train folder")
    train, ignored = _classes(name, divided[-1], _folders(divided[-1]))
    if len(divided) == 1:
        return _listing(name, folder, *_divide(name, train), ignored)
    test, more = _classes(name, divided[0], _folders(divided[0]))
    if strange := sorted(set(test) - set(train)):
        raise TaskError(f"task {name!r}: class {strange[0]!r} is in test, but not in train")
    return _listing(name, folder, train, test, ignored + more)


def choose_shape(found: list[Listing], image_size: int | None, tell: Tell) -> Shape:
    """The one form of all images: colours if any task has them, and a size by the flag or the first task."""
    sizes: Counter[tuple[int, int]] = Counter()
    colours = False
    for number, listing in enumerate(found):
        for path in listing.paths[:: -(-len(listing.paths) // SAMPLE)]:
            try:
                width, height, coloured = look(path)
            except FileError as error:
                if "Pillow" in str(error):
                    raise
                continue  # it is named when it is decoded
            colours = colours or coloured
            if number == 0:
                sizes[width, height] += 1
    why = "by --image-size"
    if image_size is None:
        if not sizes:
            raise FileError(f"task {found[0].name!r}: none of its images can be read, the first is {found[0].paths[0]}")
        (width, height), _ = sizes.most_common(1)[0]
        image_size = min(width, height, LARGEST_SIDE)
        why = f"most images of {found[0].name!r} have {width} x {height}"
        why += f", and {LARGEST_SIDE} is the most that is chosen without --image-size" * (
            min(width, height) > LARGEST_SIDE
        )
    if not 4 <= image_size <= 1024:
        raise ConfigError(f"--image-size must lie between 4 and 1024 pixels, but is {image_size} ({why})")
    tell(f"images become {image_size} x {image_size} pixels, {'RGB' if colours else 'grey'} ({why})")
    return 3 if colours else 1, image_size, image_size


def read_task(
    listing: Listing, shape: Shape, *, skip_broken: bool = False, tell: Tell | None = None, step: Step | None = None
) -> Task:
    """The task with its images decoded to this shape, or taken from the cache."""
    tell, name = tell or _silent, listing.name
    if listing.ignored:
        tell(f"task {name!r}: {listing.ignored} files are not named like images and were left out")

    def advance(done: int) -> None:
        if step is not None:
            step(name, done, len(listing.paths))

    found = cache.decoded(
        listing.paths,
        listing.folder,
        name,
        shape,
        skip=skip_broken,
        tell=tell,
        step=advance,
        map_above=RESIDENT_BYTES,
    )
    if found.broken:
        named = ", ".join(str(listing.paths[number]) for number in found.broken[:MOST_NAMED])
        more = f" and {len(found.broken) - MOST_NAMED} more" if len(found.broken) > MOST_NAMED else ""
        tell(f"task {name!r}: skipped {len(found.broken)} broken images: {named}{more}")
    gone = set(found.broken)
    labels = torch.tensor([label for number, label in enumerate(listing.labels) if number not in gone])
    train = listing.train - sum(number < listing.train for number in gone)
    parts: list[Part] = [
        part_of(found.images[where], labels[where]) for where in (slice(0, train), slice(train, len(labels)))
    ]
    return Task(name, train=parts[0], test=parts[1], classes=listing.classes)


def _silent(_: str) -> None:
    """Nobody listens."""


def _name(folder: Path) -> str:
    """A folder's name as a task's or class's: what a model file can hold."""
    name = folder.name
    if not name or len(name) > 200 or not name.isprintable() or any(ord(letter) > 0xFFFF for letter in name):
        raise TaskError(
            f"{str(folder)!r}: a task or class is named by a short printable text without characters like emoji"
        )
    return name


def _folders(folder: Path) -> list[Path]:
    """Sub-folders in the order of their names; hidden ones are nobody's."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise FileError(f"{folder}: the folder cannot be read ({error.strerror or error})") from error


def _classes(task: str, folder: Path, inside: list[Path]) -> tuple[dict[str, list[Path]], int]:
    """Each class's images in the order of their names, and how many files are no images."""
    if len(inside) < 2:
        raise TaskError(f"task {task!r}: needs at least two class folders, but {folder} has {len(inside)}")
    classes, ignored = {}, 0
    for path in inside:
        if below := _folders(path):
            raise TaskError(f"task {task!r}: class folder {path} holds a folder, {below[0].name!r}; expected {LAYOUT}")
        try:
            files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
        except OSError as error:
            raise FileError(f"{path}: the folder cannot be read ({error.strerror or error})") from error
        images = [file for file in files if is_image(file)]
        if not images:
            raise TaskError(f"task {task!r}: class {path.name!r} is empty ({path} has no images)")
        classes[_name(path)] = images
        ignored += len(files) - len(images)
    return classes, ignored


def _divide(task: str, classes: dict[str, list[Path]]) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """A part of each class for the test, drawn by names alone: the same in every run."""
    train, test = {}, {}
    for name, paths in classes.items():
        if len(paths) < 3:
            raise TaskError(
                f"task {task!r}: class {name!r} has {len(paths)} images; without a test folder at least 3 are needed, "
                "to train, to decide and to test"
            )
        order = torch.randperm(len(paths), generator=seeds.generator(0, "test part", task, name)).tolist()
        count = max(1, round(TEST_SHARE * len(paths)))
        test[name] = [paths[number] for number in sorted(order[:count])]
        train[name] = [paths[number] for number in sorted(order[count:])]
    return train, test


def _listing(
    name: str, folder: Path, train: dict[str, list[Path]], test: dict[str, list[Path]], ignored: int
) -> Listing:
    names = tuple(train)
    rows = [(path, label) for part in (train, test) for label, key in enumerate(names) for path in part.get(key, ())]
    paths, labels = [path for path, _ in rows], [label for _, label in rows]
    return Listing(name, folder, names, paths, labels, sum(map(len, train.values())), ignored)
