"""The scripts that make the rows of the tables: what they ask for, in which order, what they leave alone."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

import digits
import lanes
import miniimagenet
import rows
import split
import superclass
from grown.bench import presets
from grown.bench.request import Request, configure
from grown.cli.main import app
from grown.data import STREAMS
from grown.methods import METHODS
from helpers import write_result

TABLES = {
    "digits": digits.TABLE,
    "superclass": superclass.TABLE,
    "miniimagenet": miniimagenet.TABLE,
    **split.TABLES,
}
BASES = {"superclass": 33_584_832, "miniimagenet": 11_159_232, "parity": 2_986_500, "best": 2_986_500}


@pytest.mark.parametrize("name", ["superclass", "miniimagenet", "parity"])
def test_equal_bytes_are_equal(name: str) -> None:
    size = 0.3 * 4 * BASES[name]
    assert TABLES[name].scratch_bytes(TABLES[name].width_for(size)) == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_method_is_a_row_that_can_be_asked_for(name: str) -> None:
    table = TABLES[name]
    assert table.benchmark in STREAMS
    asked = [row.options for row in table.rows.values()]
    assert set(METHODS) - {"grown"} == {words[1] for words in asked if words[:1] == ("--method",)}
    labels = [words[words.index("--label") + 1] if "--label" in words else "" for words in asked]
    assert len({(words[:2], label) for words, label in zip(asked, labels, strict=True)}) == len(asked)
    known = {name for parameter in typer.main.get_command(app).commands["run"].params for name in parameter.opts}  # type: ignore[attr-defined]
    words = {word for options in (*asked, table.options) for word in options if word.startswith("--")}
    assert words <= known
    assert table.rows["grown"].needs == ("targets" if name in ("superclass", "miniimagenet") else "scratch",)
    assert table.rows["equal"].needs == ("grown",)
    assert table.path_of("grown", 3).parent.name == table.name
    assert all(need in table.rows for row in table.rows.values() for need in row.needs)
    best = split.TABLES["best"].asked("finetune", 2, [2])
    assert [best[2:4], best[-2:]] == [["--recipe", "split-best"], ["--seed", "2"]]


class Asked(list[list[str]]):
    """What was asked for, and by which environment."""

    def __init__(self) -> None:
        super().__init__()
        self.environments: list[dict[str, str]] = []

    def names(self) -> list[str]:
        return [Path(words[words.index("--out") + 1]).name for words in self]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Every run is over as soon as it began."""
    asked = Asked()

    class Finished:
        def __init__(self, words: list[str], env: dict[str, str], **_: Any) -> None:
            asked.append(words)
            asked.environments.append(env)
            out = Path(words[words.index("--out") + 1])
            method = words[words.index("--method") + 1] if "--method" in words else "grown"
            tasks = [{"grew": True, "val": 80.0}, {"grew": False, "val": 82.0}]
            assert not out.exists()  # else it would be resumed
            write_result(out.parent, method, "default", tasks=tasks, bytes={"total": int(0.2 * 4 * 33_584_832)})
            written = next(out.parent.glob("*.json"))
            out.mkdir()
            (out / "run.json").write_text("{}")
            result = {**json.loads(written.read_text()), "device": words[words.index("--device") + 1]}
            result["seconds"] = {"total": 1.0, "training": 1.0}
            (out / "result.json").write_text(json.dumps(result))
            written.unlink()

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(rows.subprocess, "Popen", Finished)
    return asked


def test_rows_run_in_the_order_in_which_they_need_each_other(tmp_path: Path, asked: Asked) -> None:
    table = superclass.TABLE
    (tmp_path / "work").mkdir()
    arguments = argparse.Namespace(
        data=Path("data"), work=tmp_path / "work", rows=["equal", "grown", "targets"], seeds=[0, 1], jobs=2,
        beside=3, device="cpu", deadline=60.0,
    )  # fmt: skip
    rows.run_all(table, arguments)
    assert asked.names() == ["targets-0", "targets-1", "grown-0", "grown-1", "equal-0", "equal-1"]
    grown = asked[2]
    assert grown[grown.index("--target") + 1] == str(table.path_of("targets", 0))
    width = float(asked[4][asked[4].index("--width") + 1])
    assert table.scratch_bytes(width) == pytest.approx(0.2 * 4 * 33_584_832, rel=0.05)
    assert json.loads(table.path_of("equal", 1).read_text())["jobs"] == 2 + 3  # so many shared the machine
    asked.clear()
    rows.run_all(table, arguments)  # all is there
    assert asked == []
    rows.run_all(table, argparse.Namespace(**{**vars(arguments), "rows": ["grown"], "device": "cuda"}))
    assert asked == []  # its targets would be a CPU's
    arguments = argparse.Namespace(**{**vars(arguments), "rows": ["grown", "targets"], "device": "cuda"})
    rows.run_all(table, arguments)
    assert asked.names() == ["targets-0", "targets-1", "grown-0", "grown-1"]  # in place of those
    assert not table.has("grown", 0, "cpu")
    assert table.has("grown", 0, "cuda:1")  # whichever GPU it was


def test_lanes_run_side_by_side_and_wait_for_what_they_build_on(
    tmp_path: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = argparse.Namespace(data=Path("data"), work=tmp_path / "work", device="cpu", deadline=60.0)
    words = ["superclass/grown/0,1", "superclass/targets/0 split/scratch/4", "miniimagenet/targets/0"]
    lanes.run_lanes([lanes.read_lane(lane) for lane in words], arguments)
    assert asked.names() == ["targets-0", "targets-0", "grown-0", "scratch-4"]
    assert "not begun: [('cifar100-superclass grown', 1)]" in capsys.readouterr().out  # nobody makes its targets
    assert {environment["OMP_NUM_THREADS"] for environment in asked.environments} == {"1"}
    later = ["CUDA_MPS_CLIENT_PRIORITY" in environment for environment in asked.environments]
    assert later == [True, True, False, True]
    assert json.loads(superclass.TABLE.path_of("grown", 0).read_text())["jobs"] == 3
    assert [words[4] for words in asked] == [
        "cifar100-superclass", "miniimagenet-20", "cifar100-superclass", "cifar100-split"
    ]  # fmt: skip
    asked.clear()
    lanes.run_lanes([lanes.read_lane("superclass/grown/0")], arguments)  # it is there
    assert asked == []


@pytest.mark.parametrize(
    "word", ["supper/grown/0", "split/grows/0", "split/grown", "split/grown/x", "split/grown/0,", "split/grown/0/1"]
)
def test_a_lane_that_cannot_be_read_is_told(word: str) -> None:
    with pytest.raises(ValueError, match=f"^{word}: "):
        lanes.read_lane(f"split/scratch/0 {word}")


def test_at_the_deadline_a_run_may_end_its_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    words = "import signal, sys; signal.signal(15, {}); print(flush=True); [signal.pause() for _ in range(99)]"
    running = {}
    for number, handler in enumerate(("lambda *_: sys.exit(7)", "signal.SIG_IGN")):
        process = subprocess.Popen([sys.executable, "-c", words.format(handler)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        running["grown", number] = process
    rows.stop(running, grace=1.0)
    assert [process.wait() for process in running.values()] == [7, -9]  # asked; killed, since it would not
    assert capsys.readouterr().out.count("it will be resumed") == 2
    for process in running.values():
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_row_is_a_run_that_can_be_configured(name: str) -> None:
    table = TABLES[name]
    for row in table.rows.values():
        words = [*row.options, *table.options]
        settings = tuple(value for option, value in itertools.pairwise(words) if option == "--set")
        recipe = words[words.index("--recipe") + 1] if "--recipe" in words else None
        request = Request(benchmark=table.benchmark, settings=settings, recipe=recipe)
        configure(request, presets.benchmark(table.benchmark))
