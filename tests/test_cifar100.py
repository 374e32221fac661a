"""CIFAR-100: the official files as data, the two streams in their order, and clear words for what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import grown
import own_images
from grown.cli.main import main
from grown.data import cifar100
from grown.data.cifar100 import COARSE, FINE, SUPERCLASSES, load_cifar100, split_stream, superclass_stream
from grown.data.plain_pickle import read_pickle
from grown.errors import FileError
from helpers import DATA

SHARED = DATA / "cifar100"


def coarse_of(fine: int) -> int:
    return next(k for k, name in enumerate(COARSE) if FINE[fine] in SUPERCLASSES[name].split())


def write_official(root: Path, protocol: int = 2, **changes: object) -> Path:
    """Files of the official form whose pixels tell their class and place."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True, exist_ok=True)
    for half, each in cifar100.EACH.items():
        labels = [int(label) for label in np.random.default_rng(0).permutation(np.repeat(np.arange(100), each))]
        planes = np.zeros((len(labels), 3, 32, 32), dtype=np.uint8)
        planes[:, 0] = np.array(labels)[:, None, None]  # red: the class
        planes[:, 1] = np.arange(32)[:, None]  # green: the row
        planes[:, 2] = np.arange(32)  # blue: the column
        content = {
            "data": planes.reshape(-1, 3072),
            "fine_labels": labels,
            "coarse_labels": [coarse_of(label) for label in labels],
            "filenames": [f"{i}.png" for i in range(len(labels))],
            **changes,
        }
        (folder / half).write_bytes(pickle.dumps(content, protocol=protocol))
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_official(tmp_path_factory.mktemp("cifar"))


def test_superclasses_are_five_of_a_hundred() -> None:
    assert len(FINE) == len(set(FINE)) == 100
    assert len(COARSE) == 20
    assert all(len(names.split()) == 5 for names in SUPERCLASSES.values())
    known = {"apple": 4, "aquarium_fish": 1, "baby": 14, "bear": 8, "beaver": 0, "worm": 13, "willow_tree": 17}
    assert {name: coarse_of(FINE.index(name)) for name in known} == known


def test_the_superclass_stream_is_cpgs(made: Path) -> None:
    tasks = superclass_stream(made)
    assert [task.name for task in tasks] == COARSE
    for task in tasks:
        assert task.classes == tuple(sorted(SUPERCLASSES[task.name].split()))
        assert (len(task.train), len(task.test)) == (2500, 500)
        red = task.train.images[:, 0, 0, 0]
        assert [FINE[int(value)] for value in red] == [task.classes[int(label)] for label in task.train.labels]


def test_photos_in_folders_are_the_streams(made: Path, tmp_path: Path) -> None:
    def written(name: str, *more: str) -> list[grown.Task]:
        own_images.main([str(tmp_path / name), "--data", str(made), "--tasks", "2", "--each", "6", *more])
        return grown.data.stream(f"folder:{tmp_path / name}")

    for photos, held_out, theirs in zip(
        written("photos"), written("held-out", "--held-out"), superclass_stream(made), strict=False
    ):
        assert (photos.name, photos.classes) == (theirs.name, theirs.classes)
        for part, whole in ((photos.train, theirs.train), (photos.test, theirs.test)):
            first = torch.cat([whole.images[whole.labels == label][:6] for label in range(5)])
            assert torch.equal(part.images, first)
            assert part.labels.tolist() == [label for label in range(5) for _ in range(6)]
        fifth = torch.arange(30) % 6 % 5 == 0
        assert torch.equal(held_out.train.images, photos.train.images[~fifth])
        assert torch.equal(held_out.test.images, photos.train.images[fifth])
    with pytest.raises(SystemExit):
        written("photos")


def test_the_split_stream_is_apds(made: Path) -> None:
    tasks = split_stream(made)
    assert len(tasks) == 10
    for k, task in enumerate(tasks):
        assert task.classes == tuple(FINE[10 * k : 10 * k + 10])
        assert (len(task.train), len(task.test)) == (5000, 1000)
        fit, held = task.hold_out(0.2, seed=0)
        assert (len(fit), len(held)) == (4000, 1000)
        assert int((task.test.images[:, 0, 0, 0] - task.test.labels).unique().item()) == 10 * k


def test_pixels_are_not_scrambled(made: Path) -> None:
    image = superclass_stream(made)[0].train.images[0]
    assert image[1, :, 0].tolist() == list(range(32))
    assert image[2, 0, :].tolist() == list(range(32))
    assert bool((image[0] == image[0, 0, 0]).all())


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_every_pickle_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for order in (array, np.asfortranarray(array)):
        path = tmp_path / "file"
        path.write_bytes(pickle.dumps({b"data": order, "labels": [1, 2], "name": "x"}, protocol=protocol))
        found = read_pickle(path)
        assert np.array_equal(found["data"], array)
        assert found["labels"] == [1, 2]


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {Evil.mark}",)

    mark = ""


def test_a_hostile_pickle_does_not_execute(tmp_path: Path) -> None:
    Evil.mark = str(tmp_path / "executed")
    path = tmp_path / "file"
    for content in (Evil(), {"data": Evil()}, [Evil()]):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(FileError, match="which data does not need"):
            read_pickle(path)
    for code in (b"cbuiltins\neval\n(S'1'\ntR.", b"cnumpy\nload\n(S'x'\ntR.", b"\x80\x02cos\nsystem\nq\x00."):
        path.write_bytes(code)
        with pytest.raises(FileError):
            read_pickle(path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "list", "float", "short", "huge"])
def test_damaged_pickles_are_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "file"
    good = pickle.dumps({"data": np.zeros((4, 4), dtype=np.uint8)}, protocol=2)
    content = {
        "cut": good[:-20],
        "empty": b"",
        "noise": b"\x93\x00hello",
        "list": pickle.dumps([1, 2]),
        "float": pickle.dumps({"data": np.zeros((4, 4))}, protocol=2),
        "short": good.replace(b"K\x04K\x04\x86", b"K\x04K\x05\x86"),
        "huge": good.replace(b"K\x04K\x04\x86", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"),
    }[damage]
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value)


WRONG = {
    "CIFAR-10": ({"fine_labels": [0], "coarse_labels": None}, "expected 300 labels"),
    "pixels": ({"data": np.zeros((5, 3072), dtype=np.uint8)}, "expected 300 images"),
    "superclasses": ({"coarse_labels": [0] * 300}, "superclasses are not"),
    "labels": ({"fine_labels": [100] * 300}, "labels from 0 to 99"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_another_data_set_is_refused(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, words = WRONG[case]
    monkeypatch.setattr(cifar100, "EACH", {"train": 3, "test": 3})
    write_official(tmp_path, **changes)
    with pytest.raises(FileError, match=words):
        load_cifar100(tmp_path)


def test_image_folders_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setattr(cifar100, "EACH", {"train": 3, "test": 2})
    for half, each in (("train", 3), ("test", 2)):
        for label, name in enumerate(FINE):
            folder = tmp_path / half / name
            folder.mkdir(parents=True)
            for number in range(each):
                pixels = np.full((32, 32, 3), label, dtype=np.uint8)
                pixels[..., 1] = np.arange(32)[:, None]
                Image.fromarray(pixels).save(folder / f"{number}.png")
    train, test = load_cifar100(tmp_path)
    assert (len(train.labels), len(test.labels)) == (300, 200)
    assert np.array_equal(train.images[:, 0, 0, 0], train.labels)
    assert train.images[0, :, 0, 1].tolist() == list(range(32))
    assert "image folders" in cifar100.describe(tmp_path)[0]
    cifar100._load.cache_clear()
    (tmp_path / "train" / "bear" / "0.png").unlink()
    with pytest.raises(FileError, match=r"bear.*expected 3"):
        load_cifar100(tmp_path)
    (tmp_path / "train" / "bear" / "0.png").write_bytes(b"no image")
    with pytest.raises(FileError, match=r"0\.png: not a readable image"):
        load_cifar100(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / "bear" / "0.png")
    with pytest.raises(FileError, match="32 x 32"):
        load_cifar100(tmp_path)
    cifar100._load.cache_clear()


def test_grown_data_says_what_is_there_or_how_to_get_it(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code in ((["--data", str(made)], 0), (["--data", str(tmp_path)], 2)):
        with pytest.raises(SystemExit) as ended:
            main(["data", "cifar100", *arguments])
        assert ended.value.code == code
    shown = capsys.readouterr()
    assert "50000 training and 10000 test images" in shown.out
    assert "cs.toronto.edu" in shown.err
    assert shown.err.count("\n") == 1
    with pytest.raises(SystemExit) as ended:
        main(["run", "cifar100-superclass", "--data", str(tmp_path)])
    assert ended.value.code == 2
    assert "cs.toronto.edu" in capsys.readouterr().err


def test_real_images_are_where_they_belong(real_cifar100: Path) -> None:
    """The packed originals, class by class: every pixel of the stream is theirs."""
    root = real_cifar100
    train, test = load_cifar100(root)
    if (SHARED / "meta.json").is_file():
        meta = json.loads((SHARED / "meta.json").read_text())
        assert meta["fine_labels"] == FINE
        assert meta["coarse_labels"] == COARSE
        assert [coarse_of(label) for label in range(100)] == meta["fine_to_coarse"]
    assert train.images.mean((0, 1, 2)) / 255 == pytest.approx([0.5071, 0.4865, 0.4409], abs=1e-3)
    # Natural images are smooth in both directions; scrambled ones are not.
    for axis in (1, 2):
        steps = np.abs(np.diff(train.images[:500].astype(np.int16), axis=axis)).mean()
        assert steps < 16
    assert len({hashlib.sha256(image).digest() for image in train.images[:1000]}) > 990
    tasks = grown.data.stream("cifar100-superclass", root)
    oranges = tasks[COARSE.index("fruit_and_vegetables")]
    label = oranges.classes.index("orange")
    mean = oranges.test.images[oranges.test.labels == label].float().mean((0, 2, 3))
    assert mean[0] > mean[2] + 40  # oranges are orange
    sea = tasks[COARSE.index("large_natural_outdoor_scenes")]
    mean = sea.test.images[sea.test.labels == sea.classes.index("sea")].float().mean((0, 2, 3))
    assert mean[2] > mean[0]
    assert len(test.labels) == 10_000
