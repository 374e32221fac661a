"""A run that was killed or stopped goes on as if nothing had happened: its files come out the same, times aside."""

from __future__ import annotations

import dataclasses
import errno
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import grown
from grown.bench import resume as resuming
from grown.bench.folder import Log
from grown.bench.request import Request
from grown.bench.runner import resume, run
from grown.config import Recipe
from grown.errors import FileError, Stopped
from grown.io import container, files, journal
from grown.methods.scratch import Scratch
from grown.report import plots
from helpers import Faults, call, content, make_task, quick

SHORT = ("--tasks", "3", "--epochs", "3", "--target", "best", "--set", "expansions=1", "--set", "margin=-5")
# Every epoch is kept, so that a kill meets as many different moments as there are.
PROGRAM = "from grown.io import journal; journal.PATIENCE = 0.0; from grown.cli.main import main; main()"


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "run", *words]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run(command(*SHORT, "--out", str(folder)), check=True, capture_output=True)
    assert {path.name for path in folder.iterdir()} == {
        ".lock", "run.json", "log.jsonl", "result.json", "model.safetensors", "report.html",
    }  # fmt: skip
    return content(folder)


def kill_until_done(folder: Path, draw: random.Random, limit: int) -> int:
    """Start the run again and again, killing it after a while; returns the kills. After `limit` it may finish."""
    kills = 0
    words = [*SHORT, "--out", str(folder)]
    while not (folder / "report.html").exists():
        process = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if kills < limit:
            began = time.monotonic()
            while process.poll() is None and not (folder / "log.jsonl").exists():
                assert time.monotonic() - began < 60
                time.sleep(0.01)
            try:
                process.wait(timeout=draw.uniform(0.0, 1.2))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
        _, error = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGKILL), error
        words = ["--resume", str(folder)]
    return kills


def test_a_killed_run_goes_on_as_if_nothing_had_happened(whole: dict[str, Any], tmp_path: Path) -> None:
    assert kill_until_done(tmp_path / "run", random.Random(0), 5) >= 3
    assert content(tmp_path / "run") == whole


@pytest.mark.slow
def test_thirty_kills(whole: dict[str, Any], tmp_path: Path) -> None:
    kills, draw, number = 0, random.Random(1), 0
    while kills < 30:
        number += 1
        kills += kill_until_done(tmp_path / str(number), draw, 8)
        assert content(tmp_path / str(number)) == whole


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_says_how_to_go_on(kind: int, whole: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {PROGRAM}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "run", *SHORT, "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(folder.glob("resume/task2.*")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(kind)
    output, error = process.communicate(timeout=60)
    assert process.returncode == 128 + kind
    assert error.startswith("grown: stopped after ")
    assert error.endswith(f"go on with: grown run --resume {folder}\n")
    assert "once more stops at once" in output
    assert call("run", "--resume", str(folder)) == 0
    assert content(folder) == whole


class Interrupt(Exception):  # noqa: N818
    """Ends a run from inside."""


def interrupt_in(epoch: int, pause: float = 0.0) -> Callable[[dict[str, Any]], None]:
    """An observer that ends a run in this epoch, counted over its trainings; it may hold up the first one."""
    seen: list[int] = []

    def observe(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            seen.append(event["epoch"])
            if len(seen) == 1:
                time.sleep(pause)
            if len(seen) == epoch:
                raise Interrupt

    return observe


@pytest.mark.parametrize("method", ["scratch", "finetune", "joint", "cpg", "packnet", "wsn", "adapter", "grow", "pnn"])
def test_every_method_goes_on_from_an_epoch(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    request = Request(method=method, tasks=2, epochs=4, seed=1)
    _, undisturbed = run(Request(method=method, tasks=2, epochs=4, seed=1, out=tmp_path / "a"))
    where = tmp_path / "b"
    with pytest.raises(Interrupt):
        run(Request(**{**request.__dict__, "out": where}), interrupt_in(3, pause=0.5))
    again: list[int] = []
    result, _ = resume(where, lambda event: again.append(event["epoch"]) if event["event"] == "epoch" else None)
    assert again[0] == 3  # two epochs were kept, the third was not
    assert content(where) == content(undisturbed)
    # The seconds before the interrupt are the run's too.
    lines = [json.loads(line) for line in (where / "log.jsonl").read_text().splitlines()]
    clock = [line["seconds"] for line in lines]
    assert clock == sorted(clock)
    assert result["seconds"]["training"] >= 0.5
    assert 0.5 <= result["seconds"]["total"] <= clock[-1] + 0.001


def test_what_is_trained_ahead_of_the_tasks_goes_on_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Scratch does on a GPU."""
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    monkeypatch.setattr(Scratch, "foresee", Scratch._train)
    request = Request(method="scratch", tasks=2, epochs=4, out=tmp_path / "a")
    run(request)
    where = tmp_path / "b"
    with pytest.raises(Interrupt):
        run(dataclasses.replace(request, out=where), interrupt_in(7))
    resume(where)
    assert content(where) == content(tmp_path / "a")

    def stop_when_trained(event: dict[str, Any]) -> None:
        if event["event"] == "epoch" and event["epoch"] == 4:
            time.sleep(0.5)
        if event["event"] == "task":
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped, match="stopped after task 1 of 2"):
        run(dataclasses.replace(request, out=tmp_path / "c"), stop_when_trained)
    result, _ = resume(tmp_path / "c")
    assert result["seconds"]["training"] >= 1.0  # of both tasks, though only one was in the file
    assert {**content(tmp_path / "c"), "log": []} == {**content(tmp_path / "a"), "log": []}  # it was tested in between


def test_a_log_that_lost_its_end_is_written_on(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"seconds": 7.5, "event": "task"}\n{"seconds": 8.0, "eve')
    log = Log(path)
    log.go_on(1000)
    log({"event": "epoch"})
    log.close()
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["event"] == "task"
    assert second["event"] == "epoch"
    assert 7.5 <= second["seconds"] < 8.5
    path.write_text("[]\n")
    log = Log(path)
    with pytest.raises(FileError, match="not the log of a run"):
        log.go_on(1000)
    log.close()


def test_a_second_interrupt_stops_at_once_and_leaves_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    kept = journal.Journal(tmp_path)
    told: list[dict[str, Any]] = []

    def two() -> None:
        with resuming.stoppable(kept, told.append):
            signal.raise_signal(signal.SIGINT)
            assert kept.is_stopping
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        two()
    assert [event["event"] for event in told] == ["stopping"]
    where = tmp_path / "run"

    def twice(event: dict[str, Any]) -> None:
        if event["event"] == "epoch" and event["epoch"] == 2:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped, match="interrupted; go on with: grown run --resume"):
        run(Request(tasks=1, epochs=4, target=0.0, out=where), twice)
    assert container.load(where / "resume" / "task1.1.safetensors", journal.JOURNAL)[1]["epoch"] == 1
    resume(where)
    run(Request(tasks=1, epochs=4, target=0.0, out=tmp_path / "whole"))
    assert content(where) == content(tmp_path / "whole")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mask": "gumbel"},
        {"target": "best", "margin": -5.0},
        {"anew": True, "start": "related", "growth": "open"},
        {"anew": True, "glance": 0.67, "hopeless": 0.0},
    ],
    ids=str,
)
def test_the_library_goes_on_too(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    config = quick(recipe=Recipe(epochs=3, batch=16), **{"target": 100.0, "expansions": 1, "max_size": 4.0, **settings})
    tasks = [make_task(f"t{number}", noise=60.0) for number in range(3)]

    def make(folder: Path) -> grown.Learner:
        torch.manual_seed(0)
        return grown.Learner(grown.models.convnet(), config, keep=folder)

    learner = make(tmp_path / "whole")
    for task in tasks:
        learner.learn(task)
    learner.close()
    for after in (2, 5, 8, 11):
        where = tmp_path / str(after)
        learner, left = make(where), [after]

        def stop(event: dict[str, Any], left: list[int] = left) -> None:
            left[0] -= event["event"] == "epoch"
            if left[0] < 0:
                raise Interrupt

        learner.observer = stop
        with pytest.raises(Interrupt):
            list(map(learner.learn, tasks))
        learner.close()
        torch.manual_seed(0)
        learner = grown.Learner.resume(where, grown.models.convnet(), config)
        for task in tasks:
            if task.name not in learner.tasks:
                learner.learn(task)
        learner.close()
        name = "model.safetensors"
        assert (where / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        assert not list((where / "resume").glob("task*"))


def test_what_cannot_go_on_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--resume", str(tmp_path)) == 2
    assert "there is no run in this folder" in capsys.readouterr().err
    assert call("run", "--resume", str(tmp_path), "--seed", "3") == 2
    assert "only --data may be given beside it" in capsys.readouterr().err

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "task" and event["number"] == 2:
            raise Interrupt

    where = tmp_path / "run"
    with pytest.raises(Interrupt):
        run(Request(tasks=2, epochs=1, target=0.0, out=where), stop)
    for name, change, words in (
        ("model.safetensors", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "is not the model that"),
        ("progress.json", lambda raw: raw[: len(raw) // 2], "JSON"),
        ("progress.json", lambda _: b"{}", "not the progress of a run"),
        ("run.json", lambda raw: raw.replace(b'"data": [\n  "', b'"data": [\n  "0'), "are not those that the run"),
        ("run.json", lambda raw: raw.replace(b'"request"', b'"requests"'), "does not say what was asked for"),
    ):
        other = tmp_path / "other"
        shutil.copytree(where, other)
        (other / name).write_bytes(change((other / name).read_bytes()))
        with pytest.raises(FileError, match=words):
            resume(other)
        shutil.rmtree(other)
    result, _ = resume(where)
    assert resume(where)[0] == json.loads(json.dumps(result))  # a finished run is shown again
    with pytest.raises(FileError, match="no such folder"):
        grown.Learner.resume(tmp_path / "absent")
    with pytest.raises(grown.ConfigError, match="give the template too"):
        grown.Learner.resume(tmp_path)


@pytest.mark.parametrize("name", ["write", "fsync", "replace"])
def test_whatever_write_fails_the_run_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every write of a run fails once: each time one line, exit code 2, and a folder from which the run goes on."""
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    monkeypatch.setattr(plots, "available", lambda: False)  # the page is drawn elsewhere; here it is written
    short = ("run", "--tasks", "2", "--epochs", "1", "--target", "0", "--set", "refit=true")
    assert call(*short, "--out", str(tmp_path / "whole")) == 0
    whole, failures = content(tmp_path / "whole"), 0
    for number in range(1, 100):
        where = tmp_path / str(number)
        with monkeypatch.context() as patch:
            faults = Faults(patch, name, number, errno.ENOSPC)
            code = call(*short, "--out", str(where))
        if faults.count < number:  # every write has failed once
            break
        error = capsys.readouterr().err
        failures += 1
        assert (code, error.count("\n"), "No space left" in error) == (2, 1, True)
        if (where / "run.json").exists():
            assert call("run", "--resume", str(where)) == 0
            assert content(where) == whole
    assert failures >= 8


def interrupt_in_third_epoch(where: Path) -> None:
    """A run of one task and four epochs, which ends there."""
    with pytest.raises(Interrupt):
        run(Request(tasks=1, epochs=4, target=0.0, out=where), interrupt_in(3))


def test_a_damaged_state_of_a_training_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    where = tmp_path / "run"
    interrupt_in_third_epoch(where)
    state = where / "resume" / "task1.1.safetensors"
    raw = bytearray(state.read_bytes())
    raw[-5] ^= 4
    state.write_bytes(raw)
    with pytest.raises(FileError, match=r"task1.1.safetensors.*remove it to go on from the last finished task"):
        resume(where)
    state.unlink()
    resume(where)
    run(Request(tasks=1, epochs=4, target=0.0, out=tmp_path / "whole"))
    assert content(where) == content(tmp_path / "whole")


def test_what_a_kill_left_half_written_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    where = tmp_path / "run"
    interrupt_in_third_epoch(where)
    (where / "resume" / f".task1.1.safetensors.0a1b2c3d{files.PART}").write_bytes(b"the beginning of a sta")
    resume(where)
    assert not (where / "resume").exists()
    assert (where / "result.json").is_file()


def test_keeping_epochs_takes_a_small_part_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(journal.time, "perf_counter", lambda: now[0])
    kept = journal.Journal(tmp_path)

    def tensors() -> dict[str, torch.Tensor]:
        now[0] += 1.0  # what a write takes
        return {"x": torch.zeros(1)}

    def epochs_on_disk() -> list[int]:
        found = sorted(tmp_path.glob("task1.*"))
        return [int(container.load(path, journal.JOURNAL)[1]["epoch"]) for path in found]

    written = []
    with kept.scope("task1"):
        for _ in range(2):
            entry = kept.claim()
            for epoch in range(1, 81):
                now[0] += 1.0
                entry.keep(epoch, 80, tensors)
                written += [epochs_on_disk()] if not written or epochs_on_disk() != written[-1] else []
    # The first training's end is written only when the second one is, and then before it.
    assert written == [[1], [51], [80, 20], [80, 70]]
