"""Export: the files compute what the networks compute, say what they are, and are written whole or not at all."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import grown
from grown.io import export as exporting
from grown.io.export import export
from helpers import Branchy, Faults, call, make_task, quick, shake

GOLDEN = Path(__file__).parent / "golden"
MODEL = str(GOLDEN / "v2-grown.safetensors")


def answers(path: Path, images: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Logits and metadata as somebody gets them who has the file and not this library."""
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
        meta = session.get_modelmeta().custom_metadata_map["grown"]
        return session.run(["logits"], {"images": images})[0], json.loads(meta)
    extra = {"grown": ""}
    program = torch.export.load(path, extra_files=extra)
    return program.module()(torch.from_numpy(images)).numpy(), json.loads(extra["grown"])


def check(learner: Any, task: str, path: Path) -> dict[str, Any]:
    """Export, and compare with the network on a batch size and images that the export did not look at."""
    done = export(learner, task, path)
    assert done.worst <= done.allowed
    assert done.size == path.stat().st_size
    shape = done.about["input"]["shape"][1:]
    images = np.random.default_rng(1).integers(0, 256, (5, *shape)).astype(np.float32)
    logits, about = answers(path, images)
    assert about == done.about
    with torch.inference_mode():
        expected = learner.network(task)(learner.normalisation(task)(torch.from_numpy(images))).numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * (1 + np.abs(expected).max()))
    data = path.read_bytes()
    assert not [word for word in (b"/src/grown", b"site-packages", b".py") if word in data], "says where it was made"
    return about


@pytest.mark.parametrize(
    ("method", "form"),
    [("grown", "onnx"), ("grown", "pt2"), ("scratch", "pt2"), ("finetune", "pt2"), ("joint", "onnx"), ("pnn", "onnx")],
)
def test_every_methods_networks(method: str, form: str, tmp_path: Path) -> None:
    learner = grown.load(GOLDEN / f"v2-{method}.safetensors")
    task = learner.tasks[-1]
    about = check(learner, task, tmp_path / f"task.{form}")
    entry = learner.state().meta["tasks"][-1]
    assert (about["task"], about["classes"]) == (task, entry["classes"])
    assert about["library"] == f"grown {grown.__version__}"
    assert about["normalisation"] == {"mean": entry["mean"], "deviation": entry["deviation"]}
    assert about["input"]["shape"][0] == "batch"


BACKBONES: dict[str, tuple[nn.Module, int, int]] = {
    "convnet": (grown.models.convnet(width=0.5), 8, 1),
    "lenet": (grown.models.lenet(width=0.2, image=8), 8, 3),
    "resnet18": (grown.models.resnet18(width=0.1), 16, 3),
    "branchy": (Branchy(), 8, 1),
}


@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone(name: str, form: str, tmp_path: Path) -> None:
    template, image, channels = BACKBONES[name]
    learner = grown.Learner(template, quick())
    for number, task in enumerate(("one", "two")):
        stage = learner.open(make_task(task, shape=(image, image, channels)))
        shake(stage, number)
        stage.commit()
    check(learner, "two", tmp_path / f"two.{form}")


def test_features_instead_of_images(tmp_path: Path) -> None:
    template = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    learner = grown.Learner(template, quick())
    learner.learn(make_task("rows", shape=(6,)))
    assert check(learner, "rows", tmp_path / "rows.onnx")["input"]["axes"] == ["batch", "features"]


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What it prints, nothing on stderr, and equal files for equal models."""
    task = grown.load(MODEL).tasks[0]
    for form in ("onnx", "pt2"):
        first, second = tmp_path / f"a.{form}", tmp_path / f"b.{form}"
        assert call("export", MODEL, "--task", task, "--format", form, "--out", str(first)) == 0
        shown = capfd.readouterr()
        assert shown.err == ""
        for words in (f"{first.stat().st_size:,} bytes", "logits agree", "takes images, float32 (batch,", "0 to 255"):
            assert words in shown.out
        assert call("export", MODEL, "--task", task, "--out", str(second)) == 0
        assert first.read_bytes() == second.read_bytes()
    assert len(list(tmp_path.iterdir())) == 4


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of an export that is refused."""
    assert call("export", *arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, out = grown.load(MODEL).tasks[0], str(tmp_path / "a.onnx")
    for arguments, words in (
        ((MODEL, "--task", "absent", "--out", out), "unknown task 'absent'"),
        ((MODEL, "--task", task, "--format", "onx", "--out", out), "Did you mean 'onnx'"),
        ((MODEL, "--task", task, "--format", "pt2", "--out", out), "is named *.pt2"),
        ((MODEL, "--task", task, "--out", str(tmp_path / "a")), "Choices: onnx, pt2"),
        ((MODEL, "--task", task, "--out", str(tmp_path / "absent" / "a.onnx")), "there is no folder"),
        ((str(tmp_path / "absent"), "--task", task, "--out", out), "no such file"),
        ((MODEL, "--task", task), "--out"),
        ((MODEL, "--out", out), "--task"),
    ):
        assert words in refused(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_replaced_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, out = grown.load(MODEL).tasks[0], tmp_path / "a.pt2"
    out.write_text("mine")
    assert "--force" in refused(capsys, MODEL, "--task", task, "--out", str(out))
    assert out.read_text() == "mine"
    assert call("export", MODEL, "--task", task, "--out", str(out), "--force") == 0
    assert out.stat().st_size > 1000
    folder = tmp_path / "b.pt2"
    folder.mkdir()
    assert "is no file" in refused(capsys, MODEL, "--task", task, "--out", str(folder), "--force")


def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, out = grown.load(MODEL).tasks[0], tmp_path / "a.pt2"
    out.write_text("mine")
    with monkeypatch.context() as patch:
        Faults(patch, "write", 1, errno.ENOSPC)
        error = refused(capsys, MODEL, "--task", task, "--out", str(out), "--force")
    assert "No space left on device" in error
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt2"]
    assert out.read_text() == "mine"


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_a_file_that_computes_something_else_is_not_kept(
    wrong: float, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def writer(program: torch.export.ExportedProgram, about: dict[str, Any]) -> Any:
        data, run = real(program, about)
        return data, lambda images: run(images) + wrong * (len(images) > 2)

    real = exporting.WRITERS["pt2"]
    monkeypatch.setitem(exporting.WRITERS, "pt2", writer)
    task = grown.load(MODEL).tasks[0]
    assert "is allowed" in refused(capsys, MODEL, "--task", task, "--out", str(tmp_path / "a.pt2"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("absent", ["onnx", "onnxscript", "onnxruntime"])
def test_onnx_is_an_extra(
    absent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    task = grown.load(MODEL).tasks[0]
    error = refused(capsys, MODEL, "--task", task, "--out", str(tmp_path / "a.onnx"))
    assert f"need {absent}," in error
    assert "grown[onnx]" in error
    assert call("export", MODEL, "--task", task, "--out", str(tmp_path / "a.pt2")) == 0
