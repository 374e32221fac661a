"""Photos in folders, as a user's own would lie there, made of CIFAR-100: small enough for two cores.

    python benchmarks/own_images.py DIR --data DATA [--tasks 8] [--each 100] [--held-out]

Then `grown run folder:DIR`, as for images of one's own. A task is a superclass, with so many images of each of its five
classes for training and as many for testing, the first ones in CIFAR-100's order. With `--held-out` every fifth of the
training images is for testing instead, so that settings can be compared before any test image is read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import grown
from grown.data.part import Part

STREAM = "cifar100-superclass"


def first(part: Part, label: int, each: int) -> Tensor:
    """The first so many images of a class (n, height, width, channels)."""
    return part.images[part.labels == label][:each].permute(0, 2, 3, 1).contiguous()


def divided(images: Tensor) -> tuple[Tensor, Tensor]:
    """All but every fifth, and every fifth."""
    fifth = torch.arange(len(images)) % 5 == 0
    return images[~fifth], images[fifth]


def write(folder: Path, images: Tensor) -> None:
    """Each image as a file."""
    folder.mkdir(parents=True)
    for number, image in enumerate(images.numpy()):
        Image.fromarray(image).save(folder / f"{number:03}.png")


def main(words: list[str] | None = None) -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", type=Path, metavar="DIR", help="a folder that is not there yet")
    parser.add_argument("--data", type=Path, required=True, help="where CIFAR-100 lies")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--each", type=int, default=100, help="images of a class, in either part")
    parser.add_argument("--held-out", action="store_true", help="test on every fifth training image")
    arguments = parser.parse_args(words)
    if arguments.to.exists():
        parser.error(f"{arguments.to} is there already")
    for task in grown.data.stream(STREAM, root=arguments.data)[: arguments.tasks]:
        for label, name in enumerate(task.classes):
            train, test = (first(part, label, arguments.each) for part in (task.train, task.test))
            train, test = divided(train) if arguments.held_out else (train, test)
            write(arguments.to / task.name / "train" / name, train)
            write(arguments.to / task.name / "test" / name, test)


if __name__ == "__main__":
    main()
