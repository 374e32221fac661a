"""Tasks are checked before anything is trained; the embedded stream is what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import grown
from grown.data.digits import PLAN, load_digits, view_of
from grown.data.normalisation import measure
from grown.data.part import Part, part_of
from grown.errors import ConfigError, TaskError
from helpers import make_task

GOOD = (np.zeros((6, 4, 4, 1), dtype=np.uint8), np.array([0, 1, 2] * 2))


ZEROS = np.zeros(6, int)


def part(images: object = GOOD[0], labels: object = GOOD[1]) -> tuple[object, object]:
    return images, labels


BAD = {
    "one class": ({"train": part(labels=ZEROS), "test": part(labels=ZEROS)}, "at least two classes"),
    "no class": ({"classes": []}, "at least two classes"),
    "label too high": ({"classes": ["a", "b"]}, "between 0 and 1"),
    "label below zero": ({"test": part(labels=np.array([-1, 0, 1, 2, 0, 1]))}, "between 0 and 2"),
    "labels are floats": ({"train": part(labels=np.zeros(6))}, "whole numbers"),
    "fewer labels": ({"train": part(labels=np.array([0, 1, 2]))}, "6 images, but 3 labels"),
    "nan": ({"train": part(images=np.full((6, 4, 4, 1), np.nan))}, "NaN"),
    "empty": ({"train": part(np.zeros((0, 4, 4, 1), np.uint8), np.zeros(0, int))}, "no images"),
    "strange shape": ({"train": part(images=np.zeros((6, 1, 1, 1, 1), np.uint8))}, "height"),
    "text": ({"train": part(images=np.full((6, 4, 4, 1), "x"))}, "uint8 or float"),
    "two sizes": ({"test": part(images=np.zeros((6, 5, 5, 1), np.uint8))}, "test images"),
    "class without images": ({"classes": ["a", "b", "c", "d"]}, "'d' has no training image"),
    "class twice": ({"classes": ["a", "b", "a"]}, "named twice"),
    "no pair": ({"train": 3}, r"\(images, labels\)"),
    "no name": ({"name": ""}, "name"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_tasks_are_refused_in_one_line(case: str) -> None:
    changes, words = BAD[case]
    arguments = {"name": "t", "train": part(), "test": part(), "classes": None, **changes}
    with pytest.raises(TaskError, match=words) as caught:
        grown.Task(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_datasets_make_a_task() -> None:
    images, labels = torch.rand(6, 3, 4, 4), torch.tensor([0, 1] * 3)
    task = grown.Task("t", train=TensorDataset(images, labels), test=TensorDataset(images, labels))
    assert task.input_shape == (3, 4, 4)
    assert torch.equal(task.train.images, images)
    assert task.classes == ("0", "1")


def test_held_out_images_are_stratified_disjoint_and_drawn_by_the_seed() -> None:
    task = make_task("t", classes=3, each=20)
    fit, held = task.hold_out(0.2, seed=0)
    assert torch.bincount(held.labels).tolist() == [4, 4, 4]
    assert len(fit) + len(held) == len(task.train)
    rows = torch.cat([fit.images, held.images]).flatten(1)
    assert len(torch.unique(rows, dim=0)) == len(torch.unique(task.train.images.flatten(1), dim=0))
    again, other = task.hold_out(0.2, seed=0)[1], task.hold_out(0.2, seed=1)[1]
    assert torch.equal(held.images, again.images)
    assert not torch.equal(held.images, other.images)
    lonely = grown.Task("t", train=(GOOD[0][:3], GOOD[1][:3]), test=part())  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="at least 2"):
        lonely.hold_out(0.2, seed=0)


def test_normalisation_centres_each_channel() -> None:
    images = torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8)
    images[:, 2] = 7
    normal = measure(Part(images, torch.zeros(50, dtype=torch.int64)))(images)
    assert torch.allclose(normal.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(normal.std((0, 2, 3), correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4)


def test_bytes_are_measured_as_doubles_are(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (600, 3, 7, 5), generator=draw, dtype=torch.uint8)
    images[:, 1] = 255
    images[:, 2] = images[:, 2] // 128 + 254
    labels = torch.zeros(600, dtype=torch.int64)
    found = measure(Part(images, labels))
    values = images.double()
    deviation = values.std((0, 2, 3), correction=0).float().tolist()
    assert found.mean == tuple(values.mean((0, 2, 3)).float().tolist())
    assert found.deviation == (deviation[0], 1.0, deviation[2])  # a constant channel is left at its scale
    np.save(tmp_path / "images.npy", images.numpy())
    assert measure(part_of(np.load(tmp_path / "images.npy", mmap_mode="r"), labels)) == found


def test_the_embedded_digits_are_the_known_ones() -> None:
    images, labels = load_digits()
    assert images.shape == (1797, 8, 8)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images.max() == 16
    assert images[0].tolist()[0] == [0, 0, 5, 13, 9, 1, 0, 0]


def test_no_image_is_on_both_sides_of_the_split_in_any_view() -> None:
    tasks = grown.data.stream("digits")
    assert len(tasks) >= 5

    def upright(task: grown.Task, side: str, view: str) -> set[bytes]:
        images = getattr(task, side).images[:, 0].numpy()
        if view == "turned":
            images = np.rot90(images, k=-1, axes=(1, 2))
        elif view == "shuffled":
            order = view_of(np.arange(64).reshape(1, 8, 8), "shuffled").flatten()
            images = images.reshape(-1, 64)[:, np.argsort(order)].reshape(-1, 8, 8)
        return {np.ascontiguousarray(image).tobytes() for image in images}

    train: set[bytes] = set()
    test: set[bytes] = set()
    for task, (_, _, view) in zip(tasks, PLAN, strict=True):
        train |= upright(task, "train", view)
        test |= upright(task, "test", view)
    assert not train & test
    assert len(train | test) == len({image.tobytes() for image in load_digits()[0]})


def test_an_unknown_stream_is_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'digits'"):
        grown.data.stream("digit")
