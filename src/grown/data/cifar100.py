"""CIFAR-100 from its official files or from image folders, and its two streams: Superclass (20 tasks), Split (10).

Both lists of names are alphabetical, so that a class's number is its place in them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grown.data import places
from grown.data.plain_pickle import read_pickle
from grown.data.task import Task
from grown.errors import FileError

# superclass -> its five classes
SUPERCLASSES: dict[str, str] = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
COARSE = sorted(SUPERCLASSES)
FINE = sorted(name for names in SUPERCLASSES.values() for name in names.split())
FOLDER = "cifar-100-python"
EACH = {"train": 500, "test": 100}
VALIDATES = 0.2  # of Split's training images
LARGEST_IMAGE = 2**20  # bytes; 32 x 32 pixels have three thousand
HOW_TO_GET_IT = (
    "Get cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, unpack it into a folder, and name "
    "that folder with --data or the environment variable GROWN_DATA."
)


@dataclass(frozen=True)
class Half:
    """The training or the test half: images (n, 32, 32, 3) and fine labels."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def superclass_stream(root: str | Path | None = None) -> list[Task]:
    """20 tasks: a superclass each, in its official order; five classes by ascending fine label; 2500/500 images."""
    train, test = load_cifar100(root)
    groups = [[FINE.index(name) for name in sorted(SUPERCLASSES[coarse].split())] for coarse in COARSE]
    return [_task(coarse, wanted, train, test) for coarse, wanted in zip(COARSE, groups, strict=True)]


def split_stream(root: str | Path | None = None) -> list[Task]:
    """10 tasks: fine labels 10k to 10k + 9; 4000/1000/1000 images, of which the seed draws which 1000 validate."""
    train, test = load_cifar100(root)
    return [
        _task(f"classes-{10 * k:02d}-{10 * k + 9:02d}", list(range(10 * k, 10 * k + 10)), train, test, VALIDATES)
        for k in range(10)
    ]


def _task(name: str, wanted: list[int], train: Half, test: Half, validation: float | None = None) -> Task:
    parts = {}
    for key, half in (("train", train), ("test", test)):
        mine = np.isin(half.labels, wanted)
        parts[key] = (half.images[mine], np.searchsorted(wanted, half.labels[mine]))
    classes = [FINE[label] for label in wanted]
    return Task(name, train=parts["train"], test=parts["test"], classes=classes, validation=validation)


def find_cifar100(root: str | Path | None) -> Path | None:
    """The folder that holds the data: official files, or train/ and test/ with a folder per class."""
    start = places.given(root)
    for folder in (start, start / FOLDER, start / "cifar100", start / "cifar100" / FOLDER):
        if (folder / "train").exists():
            return folder
    return None


def load_cifar100(root: str | Path | None = None) -> tuple[Half, Half]:
    """Both halves, checked."""
    folder = find_cifar100(root)
    if folder is None:
        raise FileError(f"there is no CIFAR-100 in {places.given(root)}. {HOW_TO_GET_IT}")
    return _load(folder.resolve())


@lru_cache(maxsize=1)
def _load(folder: Path) -> tuple[Half, Half]:
    read = _read_images if (folder / "train").is_dir() else _read_official
    train, test = (read(folder, half) for half in ("train", "test"))
    return train, test


def _read_official(folder: Path, half: str) -> Half:
    path = folder / half
    found = read_pickle(path)
    try:
        pixels, fine, coarse = found["data"], found["fine_labels"], found["coarse_labels"]
    except KeyError as error:
        raise FileError(
            f"{path}: has no {error}; is this CIFAR-10? Expected CIFAR-100's train, test and meta"
        ) from error
    count = EACH[half] * 100
    if not isinstance(pixels, np.ndarray) or pixels.shape != (count, 3072):
        raise FileError(f"{path}: expected {count} images of 3072 bytes, but got {getattr(pixels, 'shape', None)}")
    labels = _labels(path, fine, count, 100)
    above = _labels(path, coarse, count, 20)
    expected = np.array([_coarse_of(label) for label in range(100)])[labels]
    if not np.array_equal(above, expected):
        raise FileError(f"{path}: its superclasses are not CIFAR-100's; the file is damaged or another data set")
    # Rows are three planes of 32 x 32: red, green, blue.
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Half(np.ascontiguousarray(images), labels)


def _labels(path: Path, values: Any, count: int, classes: int) -> NDArray[np.int64]:
    good = (
        isinstance(values, list) and len(values) == count and all(type(v) is int and 0 <= v < classes for v in values)
    )
    if not good:
        raise FileError(f"{path}: expected {count} labels from 0 to {classes - 1}")
    return np.array(values, dtype=np.int64)


def _coarse_of(fine: int) -> int:
    return next(k for k, coarse in enumerate(COARSE) if FINE[fine] in SUPERCLASSES[coarse].split())


def _read_images(folder: Path, half: str) -> Half:
    """train/ and test/ with a folder per class, as many tools write it; read in order of class and name."""
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError("reading image files needs Pillow: pip install 'grown[images]'") from error
    images, labels = [], []
    for label, name in enumerate(FINE):
        paths = sorted((folder / half / name).glob("*.png")) + sorted((folder / half / name).glob("*.bmp"))
        if len(paths) != EACH[half]:
            raise FileError(
                f"{folder / half / name}: expected {EACH[half]} .png or .bmp images, but found {len(paths)}"
            )
        for path in paths:
            images.append(_read_image(path, Image))
        labels += [label] * len(paths)
    return Half(np.stack(images), np.array(labels, dtype=np.int64))


def _read_image(path: Path, library: Any) -> NDArray[np.uint8]:
    """One image's pixels; its size is known, so a larger one is refused before it is unpacked."""
    try:
        if path.stat().st_size > LARGEST_IMAGE:
            raise FileError(f"{path}: {path.stat().st_size:,} bytes is more than an image of 32 x 32 pixels has")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a very large image is an error below, whatever Pillow thinks of it
            with library.open(path, formats=("PNG", "BMP")) as image:
                if image.size != (32, 32):
                    raise FileError(f"{path}: expected 32 x 32 pixels, but got {image.size}")
                return np.asarray(image.convert("RGB"))
    except FileError:
        raise
    except Exception as error:  # a damaged image can raise nearly anything
        raise FileError(f"{path}: not a readable image") from error


def describe(root: str | Path | None) -> list[str]:
    """What of CIFAR-100 is there, line by line; raises where it is absent or damaged."""
    train, test = load_cifar100(root)
    folder = find_cifar100(root)
    kind = "image folders" if folder is not None and (folder / "train").is_dir() else "official files"
    return [
        f"CIFAR-100 in {folder} ({kind}): {len(train.labels)} training and {len(test.labels)} test images, "
        "100 classes, 20 superclasses",
        "streams: cifar100-superclass (20 tasks of 5 classes), cifar100-split (10 tasks of 10 classes)",
    ]
