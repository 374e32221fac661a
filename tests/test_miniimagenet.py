"""mini-ImageNet: two layouts, one stream, always the same division; a cache that is checked; and clear words."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import grown
from grown.data import cache, images, miniimagenet
from grown.data.miniimagenet import CLASSES, list_images, miniimagenet_stream
from grown.methods.base import parts_of
from helpers import DATA, call, quick

SHARED = DATA / "miniimagenet"
WNIDS = sorted(CLASSES)
EACH, SIDE = 8, 20


def picture(label: int, number: int, side: int = SIDE) -> Image.Image:
    """An image that tells its class and its number."""
    pixels = np.zeros((side, side, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = label, number
    pixels[..., 2] = np.arange(side)[:, None]
    return Image.fromarray(pixels)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight small images a class, of which two test and one validates; nothing goes into anybody's own cache."""
    for name, value in (("EACH", EACH), ("TEST", 2), ("VALIDATES", 1), ("SIDE", SIDE)):
        monkeypatch.setattr(miniimagenet, name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mini")
    for label, wnid in enumerate(WNIDS):
        (root / "mini-imagenet" / wnid).mkdir(parents=True)
        for number in range(EACH):
            picture(label, number).save(root / "mini-imagenet" / wnid / f"{number:03}.png", compress_level=1)
    return root


@pytest.fixture
def made(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil: links to the images, which cost nothing."""
    shutil.copytree(original, tmp_path / "data", copy_function=os.link)
    return tmp_path / "data"


def listed(source: Path, root: Path) -> Path:
    """The same with CSV files: 64, 16 and 20 classes, all images in one folder, not in the order of their names."""
    (root / "images").mkdir(parents=True)
    for half, wnids in (("train", WNIDS[20:84]), ("val", WNIDS[84:]), ("test", WNIDS[:20])):
        lines = ["filename,label"]
        for wnid in wnids:
            for path in sorted((source / "mini-imagenet" / wnid).iterdir(), reverse=True):
                os.link(path, root / "images" / f"{wnid}{path.name}")
                lines.append(f"{wnid}{path.name},{wnid}")
        (root / f"{half}.csv").write_text("\n".join(lines) + "\n")
    return root


def numbers(part: grown.data.Part) -> list[tuple[int, int]]:
    """Which images these are: class and number."""
    return [(int(image[0, 0, 0]), int(image[1, 0, 0])) for image in part.images]


def test_the_stream_is_as_described(made: Path) -> None:
    tasks = miniimagenet_stream(made)
    assert [task.name for task in tasks[:2]] == ["classes-00-04", "classes-05-09"]
    assert [name for task in tasks for name in task.classes] == [CLASSES[wnid] for wnid in WNIDS]
    draw = np.random.default_rng(0)
    for k, task in enumerate(tasks):
        assert task.input_shape == (3, SIDE, SIDE)
        assert task.train.images.dtype == torch.uint8
        train, validates, test = [], [], []
        for label in range(5 * k, 5 * k + 5):
            order = [(label, int(number)) for number in draw.permutation(EACH)]
            train += order[:5]
            validates += order[5:6]
            test += order[6:]
        fit, decides = parts_of(task, quick(protocol="paper"))
        assert (numbers(fit), numbers(decides), numbers(task.test)) == (train, validates, test)
        assert [label + 5 * k for label in fit.labels.tolist()] == [label for label, _ in train]
        held_out = parts_of(task, quick(holdout=0.34))[1]
        assert len(held_out) == 10
        assert set(numbers(held_out)) <= set(train + validates)  # of the first 500, never a test image
    assert tasks[0].train.images[0, 2, :, 0].tolist() == list(range(SIDE))


def test_all_layouts_are_the_same_stream(original: Path, made: Path, tmp_path: Path) -> None:
    plain = miniimagenet_stream(made)
    by_csv = listed(original, tmp_path / "csv")
    halves = tmp_path / "halves" / "mini-imagenet"
    for half, wnids in (("train", WNIDS[:64]), ("val", WNIDS[64:80]), ("test", WNIDS[80:])):
        for wnid in wnids:
            shutil.copytree(original / "mini-imagenet" / wnid, halves / half / wnid, copy_function=os.link)
    assert list_images(by_csv).layout == miniimagenet.LISTED
    for other in (by_csv, halves.parent):
        for one, two in zip(plain, miniimagenet_stream(other), strict=True):
            assert (one.name, one.classes, one.validation) == (two.name, two.classes, two.validation)
            for key in ("train", "test"):
                assert torch.equal(getattr(one, key).images, getattr(two, key).images)
                assert torch.equal(getattr(one, key).labels, getattr(two, key).labels)


def test_images_are_decoded_once_and_the_cache_is_checked(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Path] = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda path, *how: decoded.append(path) or decode(path, *how))
    told: list[str] = []
    bar: list[tuple[str, int, int]] = []

    def read() -> tuple[int, torch.Tensor]:
        decoded.clear()
        told.clear()
        found = miniimagenet_stream(made, tell=told.append, step=lambda *done: bar.append(done))
        return len(decoded), found[7].train.images

    count, first = read()
    assert count == 800
    assert bar == [("mini-ImageNet", number, 800) for number in range(1, 801)]
    assert read()[0] == 0
    file = next((made / "mini-imagenet" / cache.FOLDER).iterdir())
    whole = file.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:-1], whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]):
        file.write_bytes(damage)
        count, found = read()
        assert count == 800
        assert torch.equal(found, first)
        assert told == [f"{file} is damaged; the images are decoded again"]
        assert file.read_bytes() == whole
    assert read()[0] == 0
    path = made / "mini-imagenet" / WNIDS[3] / "001.png"
    path.unlink()
    picture(3, 77).save(path)  # the source changed
    assert read()[0] == 800
    monkeypatch.setattr(cache, "LAYOUT", cache.LAYOUT + 1)  # and the version
    assert read()[0] == 800
    assert len(list(file.parent.iterdir())) == 1


def replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def resize(path: Path) -> None:
    path.unlink()
    picture(1, 1, 60).save(path)


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))


A, B = WNIDS[1], WNIDS[2]
# what is done to the folder, and what is said of it
WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a class is missing": (lambda at: shutil.rmtree(at / A), f"class {A} (robin) is missing"),
    "classes are missing": (lambda at: [shutil.rmtree(at / w) for w in (A, B)], f"{A} (robin) and 1 more is missing"),
    "too few images": (lambda at: (at / A / "003.png").unlink(), f"{A} (robin): expected 8 images, but found 7"),
    "too many images": (lambda at: picture(1, 9).save(at / A / "x.png"), "expected 8 images, but found 9"),
    "another size": (lambda at: resize(at / A / "003.png"), "003.png: it has 60 x 60 pixels, but 20 x 20 are expected"),
    "unreadable": (lambda at: replace(at / B / "002.png", b"no image"), f"{B}/002.png: not a readable image"),
    "cut off": (lambda at: replace(at / B / "002.png", (at / A / "002.png").read_bytes()[:60]), "not a readable image"),
}
CSV_WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a missing file": (lambda at: (at / "images" / f"{A}003.png").unlink(), f"test.csv, line 14: there is no '{A}003"),
    "a missing list": (lambda at: (at / "val.csv").unlink(), "val.csv: No such file"),
    "a strange class": (lambda at: edit(at / "train.csv", f",{WNIDS[20]}", ",n00000000"), "'n00000000' is none of"),
    "an image twice": (lambda at: edit(at / "test.csv", f"{A}003.png", f"{A}004.png"), "is named twice"),
    "too few rows": (lambda at: edit(at / "test.csv", f"{A}003.png,{A}\n", ""), "expected 8 images, but found 7"),
    "other columns": (lambda at: edit(at / "test.csv", "filename", "file"), "expected the columns filename,label"),
    "no list": (lambda at: replace(at / "test.csv", b"\xff\xfe\0\1"), "not a readable CSV file"),
    "an empty list": (lambda at: replace(at / "test.csv", b""), "expected the columns"),
    "an unreadable image": (lambda at: replace(at / "images" / f"{B}002.png", b"x"), f"{B}002.png: not a readable"),
}  # fmt: skip


def refused(root: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By `grown data` and `grown run`, in one line, and nothing is left behind."""
    for arguments in (["data", "miniimagenet"], ["run", "miniimagenet-20", "--device", "cpu"]):
        assert call(*arguments, "--data", str(root)) == 2
        shown = capsys.readouterr()
        assert words in shown.err
        assert shown.err.count("\n") == 1
        assert shown.out == ""
    assert [path for path in root.rglob(f"{cache.FOLDER}/*") if path.is_file()] == []
    assert not Path("runs").exists()
    assert not Path("own").exists()


@pytest.mark.parametrize("case", sorted(WRONG))
def test_bad_folders_are_one_line_and_nothing_is_half_written(
    case: str, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, words = WRONG[case]
    spoil(made / "mini-imagenet")
    refused(made, words, capsys)


@pytest.mark.parametrize("case", sorted(CSV_WRONG))
def test_bad_lists_are_one_line_and_nothing_is_half_written(
    case: str, original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, words = CSV_WRONG[case]
    spoil(listed(original, tmp_path / "csv"))
    refused(tmp_path / "csv", words, capsys)


def test_what_is_absent_is_said_with_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(tmp_path / "nowhere", "Expected either a folder per class", capsys)
    for arguments, words in (
        (["data", "miniimagenett"], "Did you mean 'miniimagenet'"),
        (["data", "digits", "--image-size", "9"], "--image-size is for miniimagenet"),
        (["run", "miniimagenet-20", "--skip-broken"], "--skip-broken is for folder:PATH"),
        (["run", "miniimagenet-20", "--method", "grwn"], "Did you mean 'grown'"),
    ):
        assert call(*arguments) == 2
        assert words in capsys.readouterr().err


def test_images_are_resized_if_asked(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resize(made / "mini-imagenet" / A / "003.png")
    asked = ("data", "miniimagenet", "--data", str(made))
    assert call(*asked, "--image-size", "20") == 0
    shown = capsys.readouterr().out
    assert f"mini-ImageNet in {made}/mini-imagenet (image folders by class): 800 images of 20 x 20 pixels" in shown
    assert call(*asked) == 2  # what was resized then is not taken for an image of the right size
    assert "--image-size 20 resizes such images" in capsys.readouterr().err
    assert miniimagenet_stream(made, 12)[0].input_shape == (3, 12, 12)
    assert call(*asked, "--image-size", "2") == 2
    assert "between 4 and 1024" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_one_line(made: Path, tmp_path: Path) -> None:
    (made / "mini-imagenet" / cache.FOLDER).write_text("in the way")
    (tmp_path / "own").write_text("in the way")
    told: list[str] = []
    tasks = miniimagenet_stream(made, tell=told.append)
    assert len(tasks) == 20
    assert len(told) == 1
    assert told[0].startswith("decoded images of 'mini-ImageNet' are not kept (")


@pytest.mark.parametrize("protocol", ["honest", "paper"])
def test_a_run(protocol: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    asked = ("--tasks", "2", "--epochs", "1", "--image-size", "16", "--target", "0", "--threads", "1")
    settings = ("--set", "batch=10", "--set", "holdout=0.2", "--set", "seed_size=0.02", "--set", "start_size=0.02")
    where = ("--data", str(made), "--out", str(out))
    assert call("run", "miniimagenet-20", "--protocol", protocol, *asked, *settings, *where) == 0
    shown = capsys.readouterr().out
    assert ("the benchmark's own validation images took the decisions" in shown) == (protocol == "paper")
    assert "the test images took" not in shown
    result = json.loads((out / "result.json").read_text())
    assert (result["backbone"], result["recipe"], result["base_parameters"]) == ("resnet18", "mini", 11_159_232)
    assert [stage["val"] is None for stage in result["tasks"][1]["stages"]] == (
        [False, True] if protocol == "honest" else [False]
    )


def test_real_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first task of the real images: its division, and that they are pictures."""
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    five = WNIDS[:5]
    root = os.environ.get("GROWN_DATA", "")
    if root and miniimagenet.find_miniimagenet(root) is not None:
        listing = list_images(root)
        assert [len(paths) for paths in listing.classes] == [600] * 100
        for paths, wnid in zip(listing.classes, five, strict=False):
            shutil.copytree(paths[0].parent, tmp_path / "data" / wnid)
    elif (SHARED / "miniimagenet-0.zip").is_file():
        with zipfile.ZipFile(SHARED / "miniimagenet-0.zip") as archive:
            archive.extractall(tmp_path / "data", [name for name in archive.namelist() if name[:9] in five])
    else:
        pytest.skip("mini-ImageNet's data is absent: set GROWN_DATA to its folder")
    monkeypatch.setattr(miniimagenet, "CLASSES", {wnid: CLASSES[wnid] for wnid in five})
    (task,) = miniimagenet_stream(tmp_path / "data")
    fit, decides = parts_of(task, quick(protocol="paper"))
    assert (len(fit), len(decides), len(task.test)) == (2375, 125, 500)
    assert task.input_shape == (3, 84, 84)
    assert task.classes == ("house finch", "robin", "triceratops", "green mamba", "harvestman")
    pixels = task.test.images.float()
    for axis in (2, 3):
        assert float(pixels.diff(dim=axis).abs().mean()) < 0.25 * float(pixels.std())  # neighbours are alike
    snakes = pixels[task.test.labels == 3].mean((0, 2, 3))
    assert snakes[1] > snakes[2]  # green mambas, among leaves
