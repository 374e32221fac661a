"""mini-ImageNet from image folders, or from one folder of images with CSV files, and its stream of 20 tasks."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from grown.data import cache, places
from grown.data.folders import Step, Tell
from grown.data.images import is_image
from grown.data.part import Part
from grown.data.task import Task
from grown.errors import ConfigError, FileError

_NAMES = """
n01532829 house finch, n01558993 robin, n01704323 triceratops, n01749939 green mamba, n01770081 harvestman,
n01843383 toucan, n01855672 goose, n01910747 jellyfish, n01930112 nematode, n01981276 king crab, n02074367 dugong,
n02089867 Walker hound, n02091244 Ibizan hound, n02091831 Saluki, n02099601 golden retriever,
n02101006 Gordon setter, n02105505 komondor, n02108089 boxer, n02108551 Tibetan mastiff, n02108915 French bulldog,
n02110063 malamute, n02110341 dalmatian, n02111277 Newfoundland, n02113712 miniature poodle, n02114548 white wolf,
n02116738 African hunting dog, n02120079 Arctic fox, n02129165 lion, n02138441 meerkat, n02165456 ladybug,
n02174001 rhinoceros beetle, n02219486 ant, n02443484 black-footed ferret, n02457408 three-toed sloth,
n02606052 rock beauty, n02687172 aircraft carrier, n02747177 ashcan, n02795169 barrel, n02823428 beer bottle,
n02871525 bookshop, n02950826 cannon, n02966193 carousel, n02971356 carton, n02981792 catamaran, n03017168 chime,
n03047690 clog, n03062245 cocktail shaker, n03075370 combination lock, n03127925 crate, n03146219 cuirass,
n03207743 dishrag, n03220513 dome, n03272010 electric guitar, n03337140 file, n03347037 fire screen,
n03400231 frying pan, n03417042 garbage truck, n03476684 hair slide, n03527444 holster, n03535780 horizontal bar,
n03544143 hourglass, n03584254 iPod, n03676483 lipstick, n03770439 miniskirt, n03773504 missile,
n03775546 mixing bowl, n03838899 oboe, n03854065 organ, n03888605 parallel bars, n03908618 pencil box,
n03924679 photocopier, n03980874 poncho, n03998194 prayer rug, n04067472 reel, n04146614 school bus,
n04149813 scoreboard, n04243546 slot, n04251144 snorkel, n04258138 solar dish, n04275548 spider web,
n04296562 stage, n04389033 tank, n04418357 theater curtain, n04435653 tile roof, n04443257 tobacco shop,
n04509417 unicycle, n04515003 upright, n04522168 vase, n04596742 wok, n04604644 worm fence, n04612504 yawl,
n06794110 street sign, n07584110 consomme, n07613480 trifle, n07697537 hotdog, n07747607 orange, n09246464 cliff,
n09256479 coral reef, n13054560 bolete, n13133613 ear
"""
CLASSES = {pair.split()[0]: pair.split(maxsplit=1)[1] for pair in _NAMES.replace("\n", " ").split(",")}
EACH, TEST, VALIDATES = 600, 100, 25  # images of a class: all, those that test, those that validate by protocol paper
SIDE = 84
TASK = 5  # classes of a task
HALVES = ("train", "val", "test")  # of the few-shot learners' division, which is of classes and not used here
FOLDERS, LISTED = "image folders by class", "images/ with CSV files"
HOW_TO_GET_IT = (
    "Expected either a folder per class, <wnid>/<600 images>, or images/ with train.csv, val.csv and test.csv "
    "(filename,label), as at https://github.com/twitter-research/meta-learning-lstm/tree/master/data/miniImagenet; the "
    "images are ImageNet's, of 84 x 84 pixels. Name the folder with --data or the environment variable GROWN_DATA."
)


@dataclass(frozen=True)
class Listing:
    """The files of each class in the order of their names, before any of them is opened."""

    folder: Path
    layout: str
    classes: tuple[list[Path], ...]


def miniimagenet_stream(
    root: str | Path | None = None,
    image_size: int | None = None,
    *,
    tell: Tell | None = None,
    step: Step | None = None,
) -> list[Task]:
    """20 tasks of five classes by ascending wnid; of each class 475 train, 25 validate, 100 test: always the same.

    Images have 84 x 84 pixels; where `image_size` is given, all are resized to that.
    """
    images = _pixels(list_images(root), image_size, tell, step)
    draw = np.random.default_rng(0)
    orders = [EACH * number + draw.permutation(EACH) for number in range(len(CLASSES))]
    return [_task(first, images, orders) for first in range(0, len(CLASSES), TASK)]


def _task(first: int, images: NDArray[np.uint8], orders: list[NDArray[np.int64]]) -> Task:
    mine, train = orders[first : first + TASK], EACH - TEST
    validation = [train * label + number for label in range(TASK) for number in range(train - VALIDATES, train)]
    return Task(
        f"classes-{first:02d}-{first + TASK - 1:02d}",
        train=_part(images, [order[:train] for order in mine]),
        test=_part(images, [order[train:] for order in mine]),
        classes=list(CLASSES.values())[first : first + TASK],
        validation=validation,
    )


def _part(images: NDArray[np.uint8], rows: list[NDArray[np.int64]]) -> Part:
    """These images, one class behind the other; out of the mapped file, if they are in one."""
    labels = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(mine) for mine in rows]))
    return Part(torch.from_numpy(np.array(images[np.concatenate(rows)])), labels)


def _pixels(listing: Listing, image_size: int | None, tell: Tell | None, step: Step | None) -> NDArray[np.uint8]:
    """All images (60000, 3, side, side), decoded once and kept."""
    side = SIDE if image_size is None else image_size
    if not 4 <= side <= 1024:
        raise ConfigError(f"--image-size must lie between 4 and 1024 pixels, but is {side}")
    paths = [path for paths in listing.classes for path in paths]

    def advance(done: int) -> None:
        if step is not None:
            step("mini-ImageNet", done, len(paths))

    return cache.decoded(
        paths,
        listing.folder,
        "mini-ImageNet",
        (3, side, side),
        skip=False,
        tell=tell if tell is not None else lambda _: None,
        step=advance,
        map_above=0,
        exact=image_size is None,
    ).images


def find_miniimagenet(root: str | Path | None) -> Path | None:
    """The folder that holds the data, in either layout."""
    start = places.given(root)
    for folder in (start, start / "mini-imagenet", start / "miniimagenet", start / "miniimagenet" / "mini-imagenet"):
        if _is_listed(folder) or any(_places(folder, wnid) for wnid in CLASSES):
            return folder
    return None


def list_images(root: str | Path | None) -> Listing:
    """All classes' files; refused where one is missing."""
    folder = find_miniimagenet(root)
    if folder is None:
        raise FileError(f"there is no mini-ImageNet in {places.given(root)}. {HOW_TO_GET_IT}")
    listed = _is_listed(folder)
    found = _by_csv(folder) if listed else _by_folder(folder)
    if missing := [wnid for wnid in CLASSES if not found[wnid]]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FileError(
            f"{folder}: class {missing[0]} ({CLASSES[missing[0]]}){more} is missing; mini-ImageNet has 100 classes"
        )
    for wnid, paths in found.items():
        if len(paths) != EACH:
            raise FileError(f"{folder}: class {wnid} ({CLASSES[wnid]}): expected {EACH} images, but found {len(paths)}")
    classes = tuple(sorted(found[wnid], key=lambda path: path.name) for wnid in CLASSES)
    return Listing(folder, LISTED if listed else FOLDERS, classes)


def _is_listed(folder: Path) -> bool:
    return (folder / "images").is_dir() and any((folder / f"{half}.csv").exists() for half in HALVES)


def _places(folder: Path, wnid: str) -> list[Path]:
    """A class's folders: where all classes lie together, or below train, val or test."""
    return [path for path in (folder / wnid, *(folder / half / wnid for half in HALVES)) if path.is_dir()]


def _by_folder(folder: Path) -> dict[str, list[Path]]:
    try:
        return {
            wnid: [path for place in _places(folder, wnid) for path in place.iterdir() if is_image(path)]
            for wnid in CLASSES
        }
    except OSError as error:
        raise FileError(f"{error.filename}: the folder cannot be read ({error.strerror})") from error


def _by_csv(folder: Path) -> dict[str, list[Path]]:
    try:
        there = {entry.name for entry in os.scandir(folder / "images")}
    except OSError as error:
        raise FileError(f"{folder / 'images'}: the folder cannot be read ({error.strerror})") from error
    found: dict[str, list[Path]] = {wnid: [] for wnid in CLASSES}
    seen: set[str] = set()
    for half in HALVES:
        path = folder / f"{half}.csv"
        for line, name, label in _rows(path):
            if label not in found:
                raise FileError(f"{path}, line {line}: {label!r} is none of mini-ImageNet's 100 classes")
            if name not in there:
                raise FileError(f"{path}, line {line}: there is no {name!r} in {folder / 'images'}")
            if name in seen:
                raise FileError(f"{path}, line {line}: {name!r} is named twice")
            seen.add(name)
            found[label].append(folder / "images" / name)
    return found


def _rows(path: Path) -> list[tuple[int, str, str]]:
    """Line, file name and label of each row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle, strict=True)
            if not {"filename", "label"} <= set(reader.fieldnames or ()):
                raise FileError(f"{path}: expected the columns filename,label, but got {reader.fieldnames}")
            return [(reader.line_num, row["filename"] or "", row["label"] or "") for row in reader]
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise FileError(f"{path}: not a readable CSV file ({error})") from error


def describe(
    root: str | Path | None, image_size: int | None = None, tell: Tell | None = None, step: Step | None = None
) -> list[str]:
    """What of mini-ImageNet is there, every image decoded; raises where it is absent or damaged."""
    listing = list_images(root)
    count, _, height, width = _pixels(listing, image_size, tell, step).shape
    return [
        f"mini-ImageNet in {listing.folder} ({listing.layout}): {count} images of {width} x {height} pixels, "
        f"{len(CLASSES)} classes",
        "stream: miniimagenet-20 (20 tasks of 5 classes)",
    ]
