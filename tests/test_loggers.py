"""Loggers: what a run's events come to in TensorBoard, in another tool, and in one of the user's own."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grown.io import journal
from grown.report import loggers
from helpers import call

SHORT = ("run", "--tasks", "2", "--epochs", "2", "--target", "100", "--set", "expansions=1")


class Kept:
    """A logger that only remembers."""

    last: Kept

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scalars: dict[str, list[tuple[int, float]]] = {}
        self.pictures: list[tuple[str, tuple[int, ...], int]] = []
        self.ended: tuple[dict[str, Any], dict[str, float]] | None = None
        Kept.last = self

    def scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.setdefault(name, []).append((step, value))

    def picture(self, name: str, pixels: loggers.Picture, step: int) -> None:
        assert pixels.dtype == np.uint8
        self.pictures.append((name, pixels.shape, step))

    def end(self, settings: dict[str, Any], results: dict[str, float]) -> None:
        self.ended = (settings, results)


def test_a_logger_of_ones_own_hears_everything(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert call(*SHORT, "--out", str(out), "--logger", "test_loggers:Kept") == 0
    kept = sys.modules["test_loggers"].Kept.last  # type: ignore[attr-defined]
    result = json.loads((out / "result.json").read_text())
    assert kept.folder == out
    assert kept.scalars["run/test accuracy"] == [(n + 1, row["test"]) for n, row in enumerate(result["tasks"])]
    assert kept.scalars["run/size"] == [(n + 1, row["size_x"]) for n, row in enumerate(result["tasks"])]
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    for stage, number in (("reuse", 0), ("expand", 1)):
        of = [
            e
            for e in events
            if e["event"] == "epoch" and (e["task"], e["stage"], e["round"]) == ("high", stage, number)
        ]
        label = f"high/{stage} {number}" if number else f"high/{stage}"
        assert [value for _, value in kept.scalars[f"{label}/loss"]] == [event["loss"] for event in of]
        assert [step for step, _ in kept.scalars[f"{label}/held-out accuracy"]] == [1, 2]
        assert f"{label}/size" in kept.scalars
    assert ("picked kernels, task x owner", (2 * loggers.CELL, 2 * loggers.CELL, 3), 2) in kept.pictures
    assert kept.ended is not None
    settings, results = kept.ended
    assert results["average_accuracy"] == result["average_accuracy"]
    assert (settings["seed"], settings["target"], settings["recipe.epochs"]) == (0, 100.0, 2)


class Fragile(Kept):
    """The same, interrupted in the middle of the second task."""

    def scalar(self, name: str, value: float, step: int) -> None:
        super().scalar(name, value, step)
        if name == "high/reuse/loss" and step == 2:
            raise KeyboardInterrupt


def test_a_run_that_goes_on_inside_a_task_tells_its_logger_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    mine = sys.modules["test_loggers"]
    heard = []
    for asked, logger, code in (
        ((*SHORT, "--out", str(tmp_path / "whole")), "Kept", 0),
        ((*SHORT, "--out", str(tmp_path / "part")), "Fragile", 130),
        (("run", "--resume", str(tmp_path / "part")), "Kept", 0),
    ):
        assert call(*asked, "--logger", f"test_loggers:{logger}") == code
        heard.append(mine.Kept.last)  # type: ignore[attr-defined]
    whole, first, second = heard
    assert "go on with: grown run --resume" in capsys.readouterr().err
    assert first.ended is None
    assert first.scalars["high/reuse/loss"][-1][0] == 2
    assert second.scalars["high/reuse/loss"] == whole.scalars["high/reuse/loss"][1:]  # its first epoch was kept
    for name, values in whole.scalars.items():
        again = dict([*first.scalars.get(name, []), *second.scalars.get(name, [])])
        assert again == dict(values), name
    assert set(second.scalars) <= set(whole.scalars)
    assert second.scalars["run/test accuracy"] == whole.scalars["run/test accuracy"]  # also of the task that was done
    assert second.ended == whole.ended
    assert second.pictures == whole.pictures


def test_tensorboard_has_scalars_pictures_and_settings(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    assert call(*SHORT, "--out", str(out), "--tensorboard") == 0
    assert {path.name for path in out.iterdir()} == {
        ".lock", "run.json", "log.jsonl", "result.json", "model.safetensors", "report.html", "tensorboard",
    }  # fmt: skip
    result = json.loads((out / "result.json").read_text())
    found = EventAccumulator(str(out / "tensorboard")).Reload()
    tags = found.Tags()
    assert [event.value for event in found.Scalars("run/test accuracy")] == pytest.approx(
        [row["test"] for row in result["tasks"]]
    )
    assert {"low/expand 1/loss", "high/reuse/held-out accuracy", "high/reuse/size"} <= set(tags["scalars"])
    assert [event.step for event in found.Images("picked kernels, task x owner")] == [1, 2]
    assert "_hparams_/session_start_info" in str(found.summary_metadata)
    # Also beside a run that goes on: one that has ended says nothing again.
    before = list((out / "tensorboard").iterdir())
    assert call("run", "--resume", str(out), "--tensorboard") == 0
    assert list((out / "tensorboard").iterdir()) == before


def test_weights_and_biases_by_a_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that are made of wandb; the real one (0.31, offline) was only tried by hand."""
    said: list[tuple[str, Any]] = []

    class Told:
        def __init__(self, name: str) -> None:
            self.name = name

        def update(self, values: dict[str, Any]) -> None:
            said.append((self.name, values))

    class Run:
        config, summary = Told("config"), Told("summary")

        def define_metric(self, name: str, step_metric: str) -> None:
            said.append(("metric", (name, step_metric)))

        def log(self, values: dict[str, Any]) -> None:
            said.append(("log", values))

        def finish(self) -> None:
            said.append(("finish", None))

    module: Any = types.ModuleType("wandb")
    module.init = lambda **details: said.append(("init", details)) or Run()
    module.Image = lambda pixels: ("image", pixels.shape)
    monkeypatch.setitem(sys.modules, "wandb", module)
    out = tmp_path / "run"
    assert call(*SHORT, "--out", str(out), "--logger", "wandb") == 0
    result = json.loads((out / "result.json").read_text())
    assert said[0] == ("init", {"project": "grown", "name": "run", "dir": str(out)})
    assert said.count(("metric", ("run/test accuracy", "run/test accuracy/step"))) == 1
    assert ("log", {"run/test accuracy": result["tasks"][0]["test"], "run/test accuracy/step": 1}) in said
    assert [kind for kind, _ in said[-3:]] == ["config", "summary", "finish"]
    assert said[-2][1]["size_x"] == result["size_x"]


def test_what_cannot_be_had_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    for arguments, words in (
        (["--tensorboard"], "tensorboard is not installed: pip install 'grown[tensorboard]'"),
        (["--logger", "wandb"], "wandb is not installed: pip install 'grown[wandb]'"),
        (["--logger", "wandbb"], "Did you mean 'wandb'?"),
        (["--logger", "no.such:thing"], "cannot be made"),
    ):
        assert call("run", *arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_share_is_a_colour() -> None:
    cells = loggers.picked([[4], [1, 3]])[:: loggers.CELL, :: loggers.CELL]
    assert tuple(cells[0, 0]) == tuple(cells[1, 1]) == loggers.ALL
    assert tuple(cells[0, 1]) == (200, 200, 200)
    assert loggers.ALL[0] < cells[1, 0][0] < loggers.NOTHING[0]
