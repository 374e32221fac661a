"""The command line: what it writes, what it shows, and one line with exit code 2 for what a user got wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grown.bench.request import Request
from grown.bench.runner import run
from grown.report.progress import Clock, LiveView, view_for
from helpers import call, content

RESULT_KEYS = {
    "benchmark", "method", "label", "backbone", "recipe", "protocol", "seed", "device", "base_parameters", "tasks",
    "accuracy_matrix", "average_accuracy", "forgetting", "backward_transfer", "forward_transfer", "size_x", "bytes_x",
    "bytes", "seconds",
}  # fmt: skip
TASK_KEYS = {
    "name", "classes", "target", "val", "test", "stages", "grew", "new_kernels", "size_x", "bytes_x", "bytes",
}  # fmt: skip


def test_the_embedded_run_shows_what_the_method_is_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`grown run --seed 3`: nothing forgotten; one later task grew, one did not, as held-out accuracy said."""
    out = tmp_path / "R"
    assert call("run", "--seed", "3", "--out", str(out)) == 0
    text = capsys.readouterr().out
    result = json.loads((out / "result.json").read_text())
    assert set(result) == RESULT_KEYS
    assert all(set(task) == TASK_KEYS for task in result["tasks"])
    assert result["forgetting"] == 0
    assert result["backward_transfer"] == 0
    assert result["average_accuracy"] >= 90
    assert len(result["tasks"]) >= 5
    later = result["tasks"][1:]
    assert any(task["grew"] for task in later)
    assert any(not task["grew"] for task in later)
    for task in later:
        stages = [stage["name"] for stage in task["stages"]]
        assert stages[0] == "reuse"
        missed = task["stages"][0]["val"] < task["target"] - 1.0
        assert (len(stages) > 1) == missed
        assert task["grew"] <= missed
    for number, row in enumerate(result["accuracy_matrix"]):
        assert row == [task["test"] for task in result["tasks"][: number + 1]]
    assert result["bytes"]["total"] == (out / "model.safetensors").stat().st_size
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert {"run", "task", "stage", "epoch", "gates", "settled", "committed", "tested", "done"} <= {
        event["event"] for event in events
    }
    for words in ("forgetting 0 points", "run folder", "average test accuracy", "low-turned", "released"):
        assert words in text
    setting = json.loads((out / "run.json").read_text())
    assert setting["threads"] == 1
    assert setting["config"]["seed"] == 3


def test_running_twice_gives_equal_files_except_for_times(tmp_path: Path) -> None:
    found = []
    for where in ("a", "b"):
        result, folder = run(Request(seed=4, tasks=3, epochs=3, out=tmp_path / where))
        assert json.loads((folder / "result.json").read_text()) == result
        found.append(content(folder))
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["scratch", "finetune"])
def test_other_methods_and_their_result_as_a_target(method: str, tmp_path: Path) -> None:
    first, folder = run(Request(method=method, tasks=2, epochs=2, out=tmp_path / "first"))
    assert first["size_x"] == 2.0
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    epochs = [(event["task"], event["epoch"]) for event in events if event["event"] == "epoch"]
    assert epochs == [(task["name"], number) for task in first["tasks"] for number in (1, 2)]
    assert first["forgetting"] == 0
    second, _ = run(Request(target=folder / "result.json", tasks=2, epochs=1, out=tmp_path / "second"))
    assert [task["target"] for task in second["tasks"]] == [task["val"] for task in first["tasks"]]


def test_width_scales_the_network_but_not_1x(tmp_path: Path) -> None:
    full, _ = run(Request(method="scratch", tasks=1, epochs=1, out=tmp_path / "a"))
    half, _ = run(Request(method="scratch", tasks=1, epochs=1, width=0.5, out=tmp_path / "b"))
    assert half["base_parameters"] == full["base_parameters"]
    assert 0.2 < half["size_x"] < 0.3


def test_any_setting_can_be_set(tmp_path: Path) -> None:
    _, folder = run(
        Request(tasks=1, epochs=1, out=tmp_path / "a", settings=("sparse=false", "crop=1", "decide=0.5", "refit=true"))
    )
    config = json.loads((folder / "run.json").read_text())["config"]
    assert (config["sparse"], config["recipe"]["crop"], config["decide"]) == (False, 1, 0.5)


def test_a_backbone_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    result, _ = run(Request(backbone="helpers:own_backbone", tasks=1, epochs=1, out=tmp_path / "a"))
    assert result["backbone"] == "helpers:own_backbone"


def test_list_and_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list") == 0
    listed = capsys.readouterr().out
    for name in ("digits", "grown", "scratch", "finetune", "joint", "convnet", "resnet18", "vgg16-bn-pool", "small"):
        assert name in listed
    _, folder = run(Request(tasks=2, epochs=2, out=tmp_path / "a"))
    assert call("inspect", str(folder / "model.safetensors")) == 0
    shown = capsys.readouterr().out
    for word in (
        "low",
        "high",
        "owned",
        "released",
        "picked",
        f"{(folder / 'model.safetensors').stat().st_size:,} bytes",
    ):
        assert word in shown
    _, folder = run(Request(method="scratch", tasks=1, epochs=1, out=tmp_path / "b"))
    assert call("inspect", str(folder / "model.safetensors")) == 0


BAD = [
    (["run", "digit"], "Did you mean 'digits'"),
    (["run", "--method", "grwn"], "Did you mean 'grown'"),
    (["run", "--backbone", "resnet17"], "Did you mean 'resnet18'"),
    (["run", "--recipe", "smal"], "Did you mean 'small'"),
    (["run", "--target", "120"], "0 to 100"),
    (["run", "--target", "scrach"], "Did you mean 'scratch'"),
    (["run", "--target", "absent.json"], "no such file"),
    (["run", "--tasks", "0"], "between 1 and"),
    (["run", "--epochs", "0"], "at least 1"),
    (["run", "--seed", "-1"], "seed"),
    (["run", "--seed", "x"], "--seed"),
    (["run", "--threads", "0"], "threads"),
    (["run", "--width", "0"], "--width"),
    (["run", "--device", "cuda:99"], "CUDA"),
    (["run", "--device", "abacus"], "unknown device"),
    (["run", "--backbone", "vgg16-bn"], "at least 32 pixels"),
    (["run", "--backbone", "no.such:thing"], "cannot be made"),
    (["run", "--backbone", "os:getcwd"], "nn.Module"),
    (["run", "--set", "select=maybe"], "select must be true or false"),
    (["run", "--set", "flip=3"], "flip must be true or false"),
    (["run", "--set", "device=cuda:99"], "CUDA"),
    (["run", "--set", "epoch=3"], "Did you mean 'epochs'"),
    (["run", "--set", "epochs"], "NAME=VALUE"),
    (["run", "--strange"], "--strange"),
    (["run", "digits", "more"], "more"),
    (["inspect", "absent.safetensors"], "no such file"),
    (["inspect"], "MODEL"),
    (["strange"], "strange"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(case[0]) for case in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert words.lower() in error.lower()
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_in_use_or_out_of_reach(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "something").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for folder, words in (
        ("used", "exists already"),
        ("empty", "exists already"),
        ("file", "exists already"),
        ("file/below", "cannot be written"),
    ):
        assert call("run", "--tasks", "1", "--epochs", "1", "--out", str(tmp_path / folder)) == 2
        assert words in capsys.readouterr().err
    assert (tmp_path / "used" / "something").read_text() == "mine"
    assert len(list((tmp_path / "used").iterdir())) == 1


def test_default_folders_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [run(Request(tasks=1, epochs=1))[1] for _ in range(2)]
    assert [str(folder) for folder in folders] == ["runs/digits-grown-seed0", "runs/digits-grown-seed0-2"]


def test_a_terminal_gets_a_live_view_and_a_pipe_gets_lines(tmp_path: Path) -> None:
    with (tmp_path / "screen").open("w") as file, view_for(Console(force_terminal=True, width=100, file=file)) as view:
        assert isinstance(view, LiveView)

        def shown(event: dict[str, Any]) -> None:
            view(event)
            view._live.refresh()  # else what lasts less than an eighth of a second may not be seen

        run(Request(tasks=2, epochs=2, out=tmp_path / "a"), shown)
    screen = (tmp_path / "screen").read_text()
    for words in ("task", "stage", "epoch", "held-out", "size", "time left", "low (1/2)", "high (2/2)", "reuse"):
        assert words in screen
    done = subprocess.run(
        [sys.executable, "-m", "grown", "run", "--tasks", "1", "--epochs", "1", "--out", str(tmp_path / "b")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert "\x1b" not in done.stdout
    assert "low: expand, held-out" in done.stdout
    assert done.stderr == ""


def test_the_clock_counts_down() -> None:
    clock = Clock()
    clock.tell({"event": "run", "tasks": ["a", "b"]})
    for _ in range(10):
        clock.tell({"event": "epoch", "epochs": 10})
    early = clock.left()
    clock.tell({"event": "tested"})
    for _ in range(9):
        clock.tell({"event": "epoch", "epochs": 10})
    assert early > clock.left() > 0
    clock.tell({"event": "tested"})
    assert clock.left() == 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out.startswith("grown ")
