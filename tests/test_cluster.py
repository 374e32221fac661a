"""`grown compare --ray` against a real cluster on this machine: two workers, one of which is killed on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grown.report import plots
from helpers import call, content

PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from grown.report import plots; plots.available = bool; from grown.cli.main import main; main()"
)


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are drawn elsewhere."""
    monkeypatch.setattr(plots, "available", lambda: False)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """A head without room for work, and two workers with room for one cell each."""
    utils = pytest.importorskip("ray.cluster_utils")
    made = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        made.workers = [made.add_node(num_cpus=1) for _ in range(2)]
        yield made
    finally:
        made.shutdown()


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until(process: subprocess.Popen[str], found: Callable[[], Any]) -> Any:
    """What is found at last, while a process runs."""
    began = time.monotonic()
    while not (answer := found()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 60
        time.sleep(0.02)
    return answer


def results(out: Path) -> dict[str, Any]:
    """Models and results, times aside."""
    found = {}
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        files = content(folder)
        about = files["run.json"].replace(str(out).encode(), b"OUT")
        found[folder.name] = (files["model.safetensors"], files["result"], files["log"], about)
    return found


def cell_at_work(node: Any) -> tuple[Path, int] | None:
    """The folder of the cell that is learned on a node, and the process that learns it."""
    ours = descendants([info.process.pid for some in node.all_processes.values() for info in some])
    for log in Path(tempfile.gettempdir()).glob("grown-*/*-default-*/log.jsonl"):
        try:
            pid = int((log.parent / ".lock").read_text() or 0)
        except OSError:  # it has ended meanwhile
            continue
        if pid in ours:
            return log.parent, pid
    return None


def descendants(pids: list[int]) -> set[int]:
    """Processes and all that they started."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, size = set(pids), 0
    while size < len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def test_what_is_stopped_on_a_cluster_goes_on_anywhere(ray_cluster: Any, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    asked = ("compare", "digits", "--methods", "scratch", "--tasks", "1", "--epochs", "40")
    process = start(*asked, "--ray", ray_cluster.address, "--out", str(there))
    until(process, lambda: any(map(cell_at_work, ray_cluster.workers)))
    process.send_signal(signal.SIGINT)
    printed, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "0 of 1 runs are done; go on with: the same command again" in error
    assert "stopping after this epoch" in printed
    assert list(there.glob("scratch-default-0/resume/*"))  # what the worker had came back
    for out in (there, here):
        assert call(*asked, "--out", str(out)) == 0
    assert results(there) == results(here)


def test_a_lost_workers_cell_is_run_again_and_the_table_is_the_same(ray_cluster: Any, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    asked = ("compare", "digits", "--methods", "grown,scratch", "--tasks", "2", "--epochs", "2")
    process = start(*asked, "--ray", ray_cluster.address, "--out", str(there))
    at_work = until(process, lambda: [(node, *cell) for node in ray_cluster.workers if (cell := cell_at_work(node))])
    node, folder, pid = at_work[0]
    os.kill(pid, signal.SIGKILL)
    ray_cluster.remove_node(node, allow_graceful=False)
    assert not (folder / "result.json").exists()
    assert call(*asked, "--out", str(here)) == 0
    printed, error = process.communicate(timeout=120)
    shutil.rmtree(folder.parent)  # the lost worker could not
    assert process.returncode == 0, error
    assert printed.count(": done, ") == 2
    assert results(there) == results(here)
    rows = [json.loads((out / "compare.json").read_text())["rows"] for out in (there, here)]
    for row in (*rows[0], *rows[1]):
        del row["seconds"]
    assert rows[0] == rows[1]
