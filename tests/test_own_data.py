"""One's own images: from a folder to a model that learns one more task and labels images, by the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import grown
from grown.bench.request import Request
from grown.bench.runner import resume, run
from grown.cli.decoding import decoding
from grown.data import cache, folders, images
from grown.errors import FileError, Stopped, TaskError
from grown.io import container
from grown.methods.verify import verify
from helpers import Branchy, call, make_task, quick


def write(path: Path, pixels: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(np.asarray(pixels, np.uint8))).save(path)
    return path


def write_task(root: Path, task: grown.Task, parts: tuple[str, ...] = ("train", "test"), each: int = 10**6) -> None:
    """A task as image files; with one part only, without a folder for it."""
    for key in parts:
        part = getattr(task, key)
        for label, name in enumerate(task.classes):
            where = root / task.name / (key if len(parts) > 1 else "") / name
            for number, row in enumerate((part.labels == label).nonzero().flatten().tolist()[:each]):
                write(where / f"{number:03}.png", part.images[row, 0] * 15)


def small(root: Path, *names: str, classes: int = 2, each: int = 4) -> Path:
    """Tasks of a few grey images."""
    for name in names:
        write_task(root, make_task(name, classes=classes, each=each), ("train",))
    return root


def test_from_a_folder_of_images_to_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, more, out = tmp_path / "data", tmp_path / "more", tmp_path / "R"
    stream = grown.data.stream("digits")
    for task, root in zip(stream[:4], (data, data, data, more), strict=True):
        write_task(root, task, each=40)
    quickly = ("--epochs", "6", "--threads", "1", "--target", "85")
    assert call("run", f"folder:{data}", *quickly, "--out", str(out)) == 0
    text = capsys.readouterr().out
    assert "images become 8 x 8 pixels, grey (most images of 'even' have 8 x 8)" in text
    result = json.loads((out / "result.json").read_text())
    assert result["benchmark"] == "folder:data"
    assert [task["name"] for task in result["tasks"]] == ["even", "high", "low"]
    assert result["forgetting"] == 0
    assert result["average_accuracy"] > 80

    model = out / "model.safetensors"
    before = grown.load(model)
    assert call("add", str(model), str(more / "low-turned"), *quickly) == 0
    text = capsys.readouterr().out
    assert "low-turned added, 5 classes" in text
    after = grown.load(model)
    assert after.tasks == ["even", "high", "low", "low-turned"]
    assert after.config == before.config
    x = torch.randn(4, 1, 8, 8)
    for name in before.tasks:
        assert torch.equal(before.extract(name)(x), after.extract(name)(x))
    assert verify(model).good

    where = more / "low-turned" / "test"
    assert call("predict", str(model), "--task", "low-turned", "--json", "--top", "2", str(where)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["image"] for row in rows] == [str(path) for path in sorted(where.rglob("*.png"))]
    right = [row["label"] == Path(row["image"]).parent.name for row in rows]
    assert sum(right) > 0.8 * len(right)
    assert all(len(row["top"]) == 2 and row["top"][0]["label"] == row["label"] for row in rows)
    assert call("predict", str(model), "--task", "auto", "--reject", "0.95", str(where / "3" / "000.png")) == 0
    assert "000.png" in capsys.readouterr().out


def test_layouts_class_counts_and_order(tmp_path: Path) -> None:
    write_task(tmp_path, make_task("b", classes=3, each=10))
    write_task(tmp_path, make_task("a", classes=2, each=10), ("train",))
    told: list[str] = []
    one, two = grown.data.folder_stream(tmp_path, tell=told.append)
    assert (one.name, two.name) == ("a", "b")
    assert (one.classes, two.classes) == (("c0", "c1"), ("c0", "c1", "c2"))
    assert (len(one.train), len(one.test)) == (16, 4)  # a fifth of each class is held out as test
    assert one.test.labels.tolist() == [0, 0, 1, 1]
    assert (len(two.train), len(two.test)) == (30, 18)
    everything = {bytes(image.numpy().tobytes()) for part in (one.train, one.test) for image in part.images}
    assert len(everything) == 20
    again = grown.data.stream(f"folder:{tmp_path}")[0]
    assert torch.equal(one.test.images, again.test.images)
    shutil.move(tmp_path / "b" / "test", tmp_path / "kept")
    assert len(grown.data.folder_stream(tmp_path)[1].test) == 6  # only a train folder: a part of it is held out
    # A class may be called train.
    os.rename(tmp_path / "a" / "c0", tmp_path / "a" / "train")  # noqa: PTH104
    assert grown.data.folder_stream(tmp_path)[0].classes == ("c1", "train")
    assert told == ["images become 8 x 8 pixels, grey (most images of 'a' have 8 x 8)"]


def test_images_of_any_kind_become_what_the_network_takes(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    colours = draw.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    grey = draw.integers(0, 256, (6, 6), dtype=np.uint8)
    deep = write(tmp_path / "deep.png", Image.fromarray(grey.astype(np.uint16) * 257))
    alpha = np.dstack([colours, np.where(grey > 127, 255, 0).astype(np.uint8)])
    clear = write(tmp_path / "clear.png", Image.fromarray(alpha))
    palette = write(tmp_path / "palette.gif", Image.fromarray(grey // 64 * 64).convert("P"))
    wide = write(tmp_path / "wide.bmp", np.repeat(np.arange(60, dtype=np.uint8)[None], 20, 0))
    bits = write(tmp_path / "bits.png", Image.fromarray(grey > 127))

    assert np.array_equal(images.decode(deep, (1, 6, 6))[0], grey)
    assert images.look(deep) == (6, 6, False)
    found = images.decode(clear, (3, 6, 6)).transpose(1, 2, 0)
    assert np.array_equal(found, np.where((grey > 127)[..., None], colours, 255))
    assert images.look(clear) == (6, 6, True)
    assert np.array_equal(images.decode(palette, (3, 6, 6))[1], grey // 64 * 64)
    assert images.look(palette) == (6, 6, False)
    middle = images.decode(wide, (1, 4, 4))[0]
    assert middle.shape == (4, 4)
    assert 20 <= middle.min() < middle.max() < 40  # the middle of it, in proportion
    assert set(images.decode(bits, (1, 6, 6)).flatten().tolist()) == {0, 255}
    turned = Image.fromarray(colours)
    turned.getexif()[0x0112] = 6  # a camera held upright
    path = tmp_path / "turned.png"
    turned.save(path, exif=turned.getexif())
    assert np.array_equal(images.decode(path, (3, 6, 6)).transpose(1, 2, 0), np.rot90(colours, -1))
    with pytest.raises(FileError, match="floating-point"):
        images.decode(write(tmp_path / "float.tiff", Image.fromarray(grey.astype(np.float32))), (1, 6, 6))


def test_size_and_colours_are_chosen_once(tmp_path: Path) -> None:
    small(tmp_path, "a", "b")
    write(tmp_path / "b" / "c0" / "colour.png", np.zeros((90, 80, 3)))
    told: list[str] = []
    stream = grown.data.folder_stream(tmp_path, 12, tell=told.append)
    assert [task.input_shape for task in stream] == [(3, 12, 12)] * 2
    assert told == ["images become 12 x 12 pixels, RGB (by --image-size)"]
    for number in range(20):
        write(tmp_path / "a" / "c0" / f"large{number}.png", np.zeros((90, 80)))
    stream = grown.data.folder_stream(tmp_path, tell=told.append)
    assert stream[0].input_shape == (3, 64, 64)
    assert "have 80 x 90, and 64 is the most that is chosen without --image-size" in told[-1]


def test_decoded_images_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "data", "a")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    decoded: list[Path] = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda path, *how: decoded.append(path) or decode(path, *how))
    told: list[str] = []

    def read() -> torch.Tensor:
        decoded.clear()
        told.clear()
        return grown.data.folder_stream(tmp_path / "data", tell=told.append)[0].train.images

    first = read()
    assert len(decoded) == 8
    kept = tmp_path / "data" / "a" / cache.FOLDER
    assert len(list(kept.iterdir())) == 1
    assert torch.equal(read(), first)
    assert decoded == []
    # A file that changed, and a damaged cache: decoded again, the latter said.
    changed = sorted((tmp_path / "data" / "a" / "c0").iterdir())[0]
    os.utime(changed, ns=(1, 1))
    read()
    assert len(decoded) == 8
    file = next(kept.iterdir())
    whole = file.read_bytes()
    for damage in (whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], whole[:-9], whole[:3], b"", whole + b"\0" * 8):
        file.write_bytes(damage)
        assert torch.equal(read(), first)
        assert len(decoded) == 8
        assert any("is damaged; the images are decoded again" in line for line in told)
        assert file.read_bytes() == whole
    # Where nothing can be written beside the images, the user's own cache is taken; or none.
    shutil.rmtree(kept)
    kept.write_text("in the way")
    read()
    assert len(decoded) == 8
    read()
    assert decoded == []
    shutil.rmtree(tmp_path / "own")
    (tmp_path / "own").write_text("in the way")
    assert torch.equal(read(), first)
    assert any("are not kept" in line for line in told)


def test_a_bar_on_a_terminal_only(tmp_path: Path) -> None:
    small(tmp_path / "data", "a")
    with (
        (tmp_path / "screen").open("w") as file,
        decoding(Console(force_terminal=True, width=100, file=file)) as (tell, step),
    ):
        grown.data.folder_stream(tmp_path / "data", tell=tell, step=step)
    assert "decoding a" in (tmp_path / "screen").read_text()
    with decoding(Console(file=sys.stdout)) as (_, nothing):
        assert nothing is None


def test_broken_images_are_named_and_skipped_only_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small(tmp_path / "data", "a", each=8)
    broken = tmp_path / "data" / "a" / "c1" / "003.png"
    broken.write_bytes(broken.read_bytes()[:40])
    (tmp_path / "data" / "a" / "c1" / "004.png").unlink()
    (tmp_path / "data" / "a" / "c1" / "004.png").symlink_to("absent")
    (tmp_path / "data" / "a" / "c1" / "notes.txt").write_text("mine")
    write(tmp_path / "data" / "a" / "c0" / "bomb.png", Image.new("1", (9000, 9000)))
    arguments = ("run", "folder:data", "--epochs", "1", "--threads", "1", "--target", "0", "--out", "R")
    for named in (str(Path("data/a/c0/bomb.png")), str(Path("data/a/c1/003.png"))):
        for _ in range(2):
            assert call(*arguments) == 2
            captured = capsys.readouterr()
            assert named in captured.err
            assert captured.err.count("\n") == 1
            assert not (tmp_path / "R").exists()
        if "bomb" in named:
            assert "9000 x 9000 pixels are more than" in captured.err
            (tmp_path / named).unlink()
    assert call(*arguments, "--skip-broken") == 0
    text = capsys.readouterr().out
    assert "skipped 2 broken images: data/a/c1/003.png, data/a/c1/004.png" in text
    assert "1 files are not named like images" in text
    assert call(*arguments) == 2  # the cache does not make it whole
    assert "003.png: not a readable image" in capsys.readouterr().err


def bad_folders(root: Path) -> dict[str, str]:
    """Folders that no tasks can be made of, and what is said of each."""
    small(root / "empty-class", "a")
    (root / "empty-class" / "a" / "c9").mkdir()
    write_task(root / "strange-test", make_task("a", classes=2))
    os.rename(root / "strange-test" / "a" / "test" / "c1", root / "strange-test" / "a" / "test" / "x")  # noqa: PTH104
    write_task(root / "test-only", make_task("a", classes=2))
    shutil.rmtree(root / "test-only" / "a" / "train")
    write_task(root / "val", make_task("a", classes=2))
    (root / "val" / "a" / "val").mkdir()
    small(root / "one-class", "a")
    shutil.rmtree(root / "one-class" / "a" / "c1")
    small(root / "too-few", "a", each=2)
    write(root / "no-classes" / "a" / "x.png", np.zeros((8, 8)))
    write(root / "no-tasks" / "x.png", np.zeros((8, 8)))
    write(root / "deep" / "a" / "b" / "c" / "x.png", np.zeros((8, 8)))
    write(root / "deep" / "a" / "d" / "c" / "x.png", np.zeros((8, 8)))
    small(root / "emoji", "a")
    os.rename(root / "emoji" / "a", root / "emoji" / "\U0001f600")  # noqa: PTH104
    return {
        "empty-class": "class 'c9' is empty",
        "strange-test": "class 'x' is in test, but not in train",
        "test-only": "no train folder",
        "val": "beside train and test there is 'val'",
        "one-class": "at least two class folders",
        "too-few": "at least 3 are needed",
        "no-classes": "at least two class folders",
        "no-tasks": "no task folders",
        "deep": "holds a folder, 'c'",
        "emoji": "emoji",
        "absent": "no such folder",
    }


def test_bad_folders_are_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, words in bad_folders(tmp_path).items():
        assert call("run", f"folder:{tmp_path / name}") == 2, name
        error = capsys.readouterr().err
        assert words in error, name
        assert error.count("\n") == 1, name
    small(tmp_path / "good", "a")
    for arguments, words in (
        (["folder:good", "--image-size", "2"], "between 4 and 1024"),
        (["folder:good", "--data", "x"], "--data is not for folder:PATH"),
        (["folder:good", "--method", "grwn"], "Did you mean 'grown'"),
        (["digits", "--image-size", "9"], "is for folder:PATH and miniimagenet-20"),
        (["folder:good", "--backbone", "vgg16-bn"], "at least 32 pixels"),
    ):
        assert call("run", *arguments) == 2
        assert words in capsys.readouterr().err
    monkeypatch.setattr(folders.Path, "iterdir", lambda _: (_ for _ in ()).throw(PermissionError(13, "denied")))
    assert call("run", "folder:good") == 2
    assert "the folder cannot be read (denied)" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_pillow_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path, "a")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(FileError, match=r"needs Pillow: pip install 'grown\[images\]'"):
        grown.data.folder_stream(tmp_path)


def test_a_run_over_a_folder_goes_on_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "data", "a", each=8)
    monkeypatch.chdir(tmp_path)
    request = Request("folder:data", epochs=1, threads=1, target=0.0, image_size=9)
    kept = Request.from_json(json.loads(json.dumps(request.to_json())))
    assert kept.folder == (tmp_path / "data").resolve()
    assert kept.image_size == 9
    events: list[dict[str, Any]] = []
    _, folder = run(request, events.append)
    assert str(folder) == "runs/folder-data-grown-seed0"
    assert events[0]["text"].startswith("images become 9 x 9")

    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "tested":
            raise KeyboardInterrupt

    small(tmp_path / "data", "b", each=8)
    whole, _ = run(dataclasses.replace(request, out=tmp_path / "whole"))
    with pytest.raises(Stopped, match="--resume"):
        run(dataclasses.replace(request, out=tmp_path / "part"), interrupt)
    (tmp_path / "data").rename(tmp_path / "moved")
    rest, _ = resume(tmp_path / "part", root=tmp_path / "moved")
    assert [task["test"] for task in rest["tasks"]] == [task["test"] for task in whole["tasks"]]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "part")]
    assert models[0] == models[1]


def test_what_cannot_be_added_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, scratch, features = (tmp_path / name for name in ("m", "s", "f"))
    learner = grown.Learner(Branchy(classes=2), quick())
    learner.learn(make_task("a", classes=2, each=4))
    learner.save(model)
    rival = grown.METHODS["scratch"](Branchy(classes=2), quick())
    rival.learn(make_task("a", classes=2, each=4))
    rival.save(scratch)
    plain = grown.Learner(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)), quick())
    plain.learn(make_task("a", classes=2, shape=(6,), each=4))
    plain.save(features)
    small(tmp_path / "data", "a", "b")
    was = {path: path.read_bytes() for path in (model, scratch, features)}
    new, again = str(tmp_path / "data" / "b"), str(tmp_path / "data" / "a") + "/"
    for arguments, words in (
        ([str(model), again], "has a task 'a' already"),
        ([str(scratch), new], "one of 'scratch'"),
        ([str(features), new], "images cannot be converted"),
        ([str(model), str(tmp_path / "absent")], "no such folder"),
        ([str(tmp_path / "absent"), new], "no such file"),
        ([str(model), new, "--target", "best"], "--target scratch"),
        ([str(model), new, "--device", "abacus"], "unknown device"),
        ([str(model), new, "--epochs", "0"], "at least 1"),
        ([str(model), new, "--out", str(tmp_path / "no" / "m")], "cannot write"),
    ):
        assert call("add", *arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    (tmp_path / "data" / "b" / "c0" / "000.png").write_bytes(b"x")
    assert call("add", str(model), new) == 2
    assert "000.png: not a readable image" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in was} == was
    assert call("add", str(model), new, "--skip-broken", "--out", str(tmp_path / "n"), "--epochs", "1") == 0
    assert "skipped 1 broken images" in capsys.readouterr().out
    assert model.read_bytes() == was[model]
    assert grown.load(tmp_path / "n").tasks == ["a", "b"]
    assert "features" in container.read(tmp_path / "n").meta["tasks"][1]


def test_a_part_without_images_makes_no_task() -> None:
    task = make_task("a")
    with pytest.raises(TaskError, match="no images"):
        grown.Task("a", train=task.train, test=task.test.take(torch.zeros(0, dtype=torch.int64)))
