"""`grown compare`: what is run and what not again, what is printed, and what survives kills, failures, strangers."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from torch import nn

from grown.bench import ablation, cluster, paper
from grown.bench.compare import Comparison
from grown.bench.grid import Grid
from grown.bench.request import Request
from grown.bench.runner import run
from grown.bench.summary import summarise
from grown.cli.compare import fill_in_ray
from grown.errors import ConfigError
from grown.methods import METHODS
from grown.methods.scratch import Scratch
from grown.report import comparison, plots
from helpers import call, content

SHORT = ("--tasks", "2", "--epochs", "1")
GRID = ("compare", "digits", "--methods", "grown,scratch", "--seeds", "0,1", *SHORT)
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from grown.io import journal; journal.PATIENCE = 0.0; from grown.report import plots; plots.available = bool; "
    "from grown.cli.main import main; main()"
)


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are drawn elsewhere; here they are written."""
    monkeypatch.setattr(plots, "available", lambda: False)


def cells(out: Path) -> dict[str, dict[str, Any]]:
    """Every run of a comparison, times aside, and its place."""
    found = {}
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        files = content(folder)
        files["run.json"] = files["run.json"].replace(str(out).encode(), b"OUT")
        files["report.html"] = files["report.html"].replace(str(out).encode(), b"OUT")
        found[folder.name] = files
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "available", lambda: False)
        assert call(*GRID, "--out", str(out)) == 0
    return out


def start(*words: str) -> subprocess.Popen[str]:
    """A comparison in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until(process: subprocess.Popen[str], done: Any) -> None:
    began = time.monotonic()
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 90
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def holders(out: Path) -> set[int]:
    """The processes that are at work on cells."""
    return {int(path.read_text()) for path in out.glob("*/.lock") if path.read_text()}


# --- what is in the tables ------------------------------------------------------------------------------------------


def test_the_tables_have_what_the_results_have(whole: Path) -> None:
    summary = json.loads((whole / "compare.json").read_text())
    assert [row["name"] for row in summary["rows"]] == ["grown", "scratch"]  # as asked for, though Scratch ran first
    for row in summary["rows"]:
        results = [json.loads((whole / f"{row['name']}-default-{seed}/result.json").read_text()) for seed in (0, 1)]
        averages = [result["average_accuracy"] for result in results]
        assert row["seeds"] == [0, 1]
        assert row["average"] == {"mean": statistics.mean(averages), "spread": statistics.stdev(averages)}
        for place in range(2):
            last = [result["accuracy_matrix"][-1][place] for result in results]
            assert row["tests"][place] == statistics.mean(last)
            assert row["sizes"][place] == statistics.mean(result["tasks"][place]["size_x"] for result in results)
        for name in ("size_x", "bytes_x", "forgetting"):
            assert row[name]["mean"] == statistics.mean(result[name] for result in results)
        assert row["seconds"]["mean"] == statistics.mean(result["seconds"]["total"] for result in results)
        assert row["paper"] is None
    page = (whole / "compare.md").read_text()
    grown = summary["rows"][0]
    for words in (
        f"| average | {grown['average']['mean']:.2f} |",
        f"| ± over seeds | {grown['average']['spread']:.2f} |",
        f"| size (kernels) | {grown['size_x']['mean']:.3f}x |",
        f"| bytes (all) | {grown['bytes_x']['mean']:.3f}x |",
        f"| low | {grown['sizes'][0]:.3f}x |",
        "The targets of grown are the held-out accuracies of Scratch's run with the same seed",
    ):
        assert words in page
    with (whole / "compare.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 8
    for line in lines:
        result = json.loads((whole / f"{line['method']}-default-{line['seed']}/result.json").read_text())
        place = int(line["number"]) - 1
        assert line["task"] == result["tasks"][place]["name"]
        assert float(line["test"]) == result["accuracy_matrix"][-1][place]
        assert float(line["bytes_x"]) == result["tasks"][place]["bytes_x"]
    assert "4 runs of scratch and grown" in (whole / "report.html").read_text()
    assert (whole / "grown-default-0" / "report.html").is_file()


def test_targets_from_scratchs_run_are_those_that_grown_would_find_itself(whole: Path, tmp_path: Path) -> None:
    run(Request(tasks=2, epochs=1, threads=1, out=tmp_path / "own"))
    own, shared = (
        json.loads((path / "result.json").read_text()) for path in (tmp_path / "own", whole / "grown-default-0")
    )
    assert json.loads((whole / "grown-default-0" / "run.json").read_text())["request"]["target"] == str(
        whole / "scratch-default-0" / "result.json"
    )
    # The file says where its targets come from, in words of other lengths; its header is a multiple of 8 bytes.
    assert abs(own["bytes"]["total"] - shared["bytes"]["total"]) <= 8
    for result in (own, shared):
        del result["seconds"], result["forward_transfer"], result["bytes_x"]
        del result["bytes"]["other"], result["bytes"]["total"]
        for task in result["tasks"]:
            del task["bytes"], task["bytes_x"]
            for stage in task["stages"]:
                del stage["seconds"]
    assert own == shared


def made_up(method: str, seed: int, tasks: int = 20) -> dict[str, Any]:
    """A result of a stream as long as the paper's."""
    tests = [70.0 + place / 2 + seed for place in range(tasks)]
    return {
        **{"benchmark": "cifar100-superclass", "backbone": "vgg16-bn-pool", "recipe": "fast", "protocol": "honest"},
        **{"device": "cuda", "base_parameters": 33_584_832, "method": method, "seed": seed},
        "tasks": [
            {"name": f"the_task_whose_name_is_long_{n}", "size_x": 0.1 * n, "bytes_x": 0.2 * n} for n in range(tasks)
        ],
        "accuracy_matrix": [tests[: place + 1] for place in range(tasks)],
        "average_accuracy": statistics.mean(tests),
        **{"forgetting": 1.25, "size_x": 2.0, "bytes_x": 3.0, "seconds": {"total": 100.0}},
    }


def make_summary(out: Path, methods: tuple[str, ...], *, with_ablation: bool = False, tasks: int = 20) -> Any:
    grid = Grid(Request(benchmark="cifar100-superclass"), out, methods, (0, 1), with_ablation)
    every = grid.cells(lambda _: False)
    results = {cell: made_up(cell.request.method, cell.request.seed, tasks) for cell in every}
    for cell, result in results.items():
        if cell.request.label in ablation.STEPS:  # each step adds its number and the seed
            step = list(ablation.STEPS).index(cell.request.label) * (1 + cell.request.seed)
            result["accuracy_matrix"][-1] = [value + step for value in result["accuracy_matrix"][-1]]
    names = [task["name"] for task in made_up("scratch", 0, tasks)["tasks"]]
    return summarise(Comparison(grid, every, names, results))


def test_the_papers_rows_stand_beside_ours_and_fit_a_terminal(tmp_path: Path) -> None:
    summary = make_summary(tmp_path, ("scratch", "grown", "sequential", "ewc", "si", "mas", "lwf", "replay", "joint"))
    blocks = comparison.blocks(summary)
    assert len(blocks) > 2
    for block in blocks:
        assert len({len(column) for column in block.columns}) == 1
    for width in (80, 100, 200):
        printed = io.StringIO()
        comparison.print_comparison(Console(file=printed, width=width), summary)
        tables = printed.getvalue().partition("Columns “paper”")[0]
        assert "…" not in tables
        assert max(map(len, tables.splitlines())) <= min(width, 100)
        assert len(re.findall(r"^ *the_task_whose_name_is_long_1 .*$", tables, re.MULTILINE)) == len(
            comparison.blocks(summary, min(width, 100))
        )  # no row is broken
    first = blocks[0].columns
    assert [column[0] for column in first][:5] == ["", "scratch", "paper", "grown", "paper"]
    assert first[4][1:4] == ["67.2", "76.8", "79.6"]
    assert first[4][first[0].index("average")] == "81.52"  # the mean of its row, not the 82.2 that it prints
    assert any("Ours 82.2 (81.52)" in note for note in summary["notes"])
    sizes = next(block for block in blocks if "size (kernels" in block.title)
    assert sizes.columns[2][:3] == ["paper", "1x", "2x"]
    assert sizes.columns[4][:3] == ["paper", "0.3x", "0.4x"]
    short = make_summary(tmp_path, ("grown",), tasks=3)
    assert short["rows"][0]["paper"]["average"] == pytest.approx((67.2 + 76.8 + 79.6) / 3)
    assert not any("82.2" in note for note in short["notes"])


def test_the_ablation_shows_what_each_step_adds_beside_the_papers(tmp_path: Path) -> None:
    summary = make_summary(tmp_path, (), with_ablation=True)
    steps = summary["ablation"]
    assert [step["name"] for step in steps] == ["grow-only", "+select", "+sparse", "+retrain"]
    assert steps[0]["average"]["mean"] == pytest.approx(statistics.mean([74.75, 75.75]))
    for step in steps[1:]:
        assert step["tests"] == pytest.approx([1.5] * 20)
        assert step["average"] == pytest.approx({"mean": 1.5, "spread": statistics.stdev([1.0, 2.0])})
    assert any("+select 3.7 (3.18)" in note for note in summary["notes"])
    block = comparison.blocks(summary)[-1]
    assert [column[0] for column in block.columns] == ["", *(word for s in steps for word in (s["name"], "paper"))]
    average = block.rows[-2]
    assert average == ("average", "75.25", "76.65", "+1.50", "+3.18", "+1.50", "+1.05", "+1.50", "+0.62")


def test_the_papers_averages_are_those_of_its_rows() -> None:
    means = {
        ("cifar100-superclass", "grown"): 81.52, ("cifar100-superclass", "den"): 77.85,
        ("cifar100-split", "scratch"): 65.38, ("cifar100-split", "apd"): 59.17,
        ("miniimagenet-20", "cpg"): 64.22, ("miniimagenet-20", "grown"): 65.23,
    }  # fmt: skip
    for (benchmark, method), mean in means.items():
        found = paper.row(benchmark, method)
        assert found is not None
        assert round(found.average + 1e-9, 2) == mean
    for rows in paper.ROWS.values():
        assert len({len(row.tests) for row in rows.values()} | {len(row.sizes) for row in rows.values()}) == 1
    assert set(paper.ABLATION) == {label.removeprefix(ablation.PREFIX) for label in ablation.STEPS}
    assert all(len(row) == 21 for row in paper.ABLATION.values())
    assert paper.row("digits", "grown") is None


def test_an_ablation_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert call("compare", "digits", "--ablation", "--tasks", "1", "--epochs", "1", "--out", str(out)) == 0
    folders = {path.name for path in out.iterdir() if path.is_dir()}
    assert folders == {f"grown-ablation-{name}-0" for name in ("grow-only", "+select", "+sparse", "+retrain")}
    config = json.loads((out / "grown-ablation-+select-0" / "run.json").read_text())["config"]
    assert (config["select"], config["sparse"], config["retrain"]) == (True, False, False)
    assert "points gained by each step" in capsys.readouterr().out


# --- what is not run again ------------------------------------------------------------------------------------------


def test_what_is_done_is_skipped(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "moved"
    shutil.copytree(whole, out)
    before = cells(out)
    (out / "grown-default-1" / "report.html").unlink()
    shutil.rmtree(out / "scratch-default-1")
    (out / "scratch-default-1").mkdir()
    (out / "scratch-default-1" / ".lock").touch()  # killed before it had written anything
    assert call(*GRID, "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert printed.count("is done already") == 3
    assert printed.count("begins") == 1
    assert {name: cell["result"] for name, cell in cells(out).items()} == {
        name: cell["result"] for name, cell in before.items()
    }
    # Scratch's runs are there, so a method that aims at them uses them, also where Scratch is not asked for.
    assert call("compare", "digits", "--methods", "grown", *SHORT, "--out", str(out)) == 0
    assert "begins" not in capsys.readouterr().out
    # And a run that found its targets itself is as good.
    shutil.rmtree(out / "grown-default-0")
    run(Request(tasks=2, epochs=1, threads=1, out=out / "grown-default-0"))
    assert call(*GRID, "--out", str(out)) == 0
    assert "begins" not in capsys.readouterr().out


def change(path: Path, **changes: Any) -> None:
    about = json.loads(path.read_text())
    for key, value in changes.items():
        about[key] = {**about[key], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": {"grown": "0.0.1"}}, "is of another version: grown 0.0.1"),
        ({"contract": 7}, "is of another version: .* with results of version 7"),
        ({"data": ["0" * 16, "1" * 16]}, "learned other data than digits has now"),
        ({"request": {"epochs": 9}}, "another run than is asked for: its epochs is 9, not 1"),
        ({"request": {"settings": ["margin=0"]}}, "its settings is"),
        ({"request": {"target": 50.0}}, "its target is 50.0, not"),
        ({"request": "none"}, "does not say what was asked for"),
        ({"request": {"settings": 1}}, "does not say what was asked for"),
        ({"versions": []}, "is of another version: grown None"),
    ],
    ids=str,
)
def test_results_of_others_are_left_alone(
    changes: dict[str, Any], words: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    change(out / "grown-default-1" / "run.json", **changes)
    shutil.rmtree(out / "scratch-default-0")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert call(*GRID, "--out", str(out)) == 2
    error = capsys.readouterr().err
    assert re.search(words, error)
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_damaged_result_is_named(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    for text, words in (("{}", "it lacks benchmark"), ("[]", "not the result"), ('{"tasks"', "JSON")):
        (out / "scratch-default-1" / "result.json").write_text(text)
        assert call(*GRID, "--out", str(out)) == 2
        error = capsys.readouterr().err
        assert f"{out / 'scratch-default-1' / 'result.json'}: " in error
        assert words in error


def test_a_strangers_folder_and_a_second_comparison_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (out / "scratch-default-0").mkdir(parents=True)
    (out / "scratch-default-0" / "diary.txt").write_text("mine")
    assert call(*GRID, "--out", str(out)) == 2
    assert "is not a run's folder" in capsys.readouterr().err
    assert (out / "scratch-default-0" / "diary.txt").read_text() == "mine"
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, pathlib; from grown.io import lock; lock.hold(pathlib.Path(sys.argv[1])); "
         "print('held', flush=True); sys.stdin.read()", str(out)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert call(*GRID, "--out", str(out)) == 2
    assert f"in use by another process ({holder.pid})" in capsys.readouterr().err
    holder.communicate()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--methods", "grwon"), "Did you mean 'grown'"),
        (("--methods", "ewc,ewc"), "method ewc is given twice"),
        (("--methods", ","), "nothing to compare"),
        (("--seeds", "0,x"), "--seeds takes whole numbers"),
        (("--seeds", "-1"), "seed must be a whole number"),
        (("--jobs", "0"), "--jobs must be at least 1"),
        (("--tasks", "99"), "--tasks must lie between 1 and 7"),
        (("--set", "margn=1"), "Did you mean 'margin'"),
        (("--backbone", "lenett"), "Did you mean 'lenet'"),
        (("--device", "tpu"), "unknown device"),
        (("--target", "absent.json"), "no such file"),
    ],
    ids=str,
)
def test_what_would_fail_everywhere_is_refused_at_once(
    words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert call("compare", "digits", *words, "--out", str(out)) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not out.exists()


# --- what fails, and what is cut off --------------------------------------------------------------------------------


class Broken(Scratch):
    """Has a bug."""

    def learn(self, task: Any) -> Any:
        raise ZeroDivisionError(f"in {task.name}\nand more")


class Unfit(Scratch):
    """Does not take this backbone."""

    def __init__(self, template: nn.Module, *_: Any, **__: Any) -> None:
        raise ConfigError(f"unfit does not take a {type(template).__name__}")


def test_a_cell_that_fails_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "broken", Broken)
    monkeypatch.setitem(METHODS, "unfit", Unfit)
    out = tmp_path / "out"
    asked = ("compare", "digits", "--methods", "broken,unfit,sequential", *SHORT, "--out", str(out))
    assert call(*asked) == 1
    printed = capsys.readouterr().out
    assert "failed: broken-default-0: ZeroDivisionError: in low (see " in printed
    assert "failed: unfit-default-0: unfit does not take a Sequential" in printed
    assert "and more" in (out / "broken-default-0.error.txt").read_text()
    assert not (out / "unfit-default-0").exists()
    summary = json.loads((out / "compare.json").read_text())
    assert [row["average"] is None for row in summary["rows"]] == [True, True, False]
    assert "| sequential |" in (out / "compare.md").read_text().replace("| broken | unfit ", "")
    monkeypatch.setattr(Broken, "learn", Scratch.learn)
    monkeypatch.setattr(Unfit, "__init__", Scratch.__init__)
    assert call(*asked) == 0  # what failed is tried again
    assert not (out / "broken-default-0.error.txt").exists()
    assert capsys.readouterr().out.count("is done already") == 1


def test_what_builds_on_a_failure_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scratch, "learn", Broken.learn)
    assert call("compare", "digits", "--methods", "grown,scratch", *SHORT, "--out", str(tmp_path / "out")) == 1
    assert "grown-default-0: its targets are those of scratch, seed 0, which failed" in capsys.readouterr().out


@pytest.mark.parametrize("jobs", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_killed_comparison_goes_on(jobs: str, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (*GRID, "--out", str(out), "--jobs", jobs)
    process = start(*words)
    until(process, lambda: list(out.glob("scratch-default-*/progress.json")))
    workers = holders(out)
    assert process.pid in workers or jobs == "2"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    began = time.monotonic()
    while not all(map(is_gone, workers)):
        assert time.monotonic() - began < 10
        time.sleep(0.01)
    assert not (out / "compare.json").exists()
    assert call(*words) == 0
    assert cells(out) == cells(whole)  # whatever the number of processes


@pytest.mark.parametrize(("jobs", "kind"), [("1", signal.SIGINT), ("2", signal.SIGTERM)])
def test_a_comparison_that_is_asked_to_stop_says_how_to_go_on(
    jobs: str, kind: signal.Signals, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = (*GRID, "--out", str(out), "--jobs", jobs)
    process = start(*words)
    until(process, lambda: list(out.glob("scratch-default-0/resume/*")))
    workers = holders(out)
    os.killpg(process.pid, kind)  # as a terminal's Ctrl-C
    printed, error = process.communicate(timeout=60)
    assert process.returncode == 128 + kind
    assert re.fullmatch(r"grown: .*; [01] of 4 runs are done; go on with: the same command again\n", error)
    assert "once more stops at once" in printed
    assert all(map(is_gone, workers))
    assert call(*GRID, "--out", str(out)) == 0
    assert cells(out) == cells(whole)


def test_a_lost_process_is_one_failed_cell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("compare", "digits", "--methods", "scratch,sequential", "--tasks", "2", "--epochs", "4", "--out", str(out))
    process = start(*words, "--jobs", "2")
    until(process, lambda: (out / "scratch-default-0" / "log.jsonl").exists())
    os.kill(int((out / "scratch-default-0" / ".lock").read_text()), signal.SIGKILL)
    printed, error = process.communicate(timeout=120)
    assert process.returncode == 1, error
    assert "failed: scratch-default-0: its process was ended by SIGKILL" in printed
    assert json.loads((out / "compare.json").read_text())["rows"][1]["average"] is not None
    assert call(*words) == 0


# --- Ray, as far as it needs none; test_cluster.py has a cluster ----------------------------------------------------


def test_ray_without_an_answer_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("compare", "digits", "--methods", "scratch", *SHORT, "--out", str(tmp_path / "out"))
    monkeypatch.setattr(cluster, "importlib", SimpleNamespace(import_module=lambda _: None))
    assert call(*asked, "--ray", "127.0.0.1:1") == 2
    assert "nobody answers at 127.0.0.1:1" in capsys.readouterr().err
    with socket.socket() as stranger:  # takes connections, and says nothing
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        monkeypatch.setattr(cluster, "ANSWER", 0.5)
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        assert call(*asked, "--ray", address) == 2
    assert re.search(f"--ray: (nobody|what) answers at {address}", capsys.readouterr().err)
    assert call(*asked, "--ray", "nowhere") == 2
    assert "--ray takes HOST:PORT" in capsys.readouterr().err

    def absent(_: str) -> Any:
        raise ImportError

    monkeypatch.setattr(cluster, "importlib", SimpleNamespace(import_module=absent))
    assert call(*asked, "--ray") == 2
    assert "pip install 'grown[ray]'" in capsys.readouterr().err


def test_ray_may_stand_without_an_address() -> None:
    assert fill_in_ray(["compare", "--ray"]) == ["compare", "--ray", "local"]
    assert fill_in_ray(["--ray", "--jobs", "2"]) == ["--ray", "local", "--jobs", "2"]
    assert fill_in_ray(["--ray", "head:6379"]) == ["--ray", "head:6379"]
