"""`grown compare --ray` against a real cluster on this machine: two workers, one of which is killed on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grown.report import plots
from helpers import call, content

ASKED = ("compare", "digits", "--methods", "grown,scratch", "--tasks", "2", "--epochs", "2")
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from grown.report import plots; plots.available = bool; from grown.cli.main import main; main()"
)


@pytest.fixture
def ray_cluster() -> Iterator[Any]:
    """A head without room for work, and two workers with room for one cell each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        made.workers = [made.add_node(num_cpus=1) for _ in range(2)]
        yield made
    finally:
        made.shutdown()


def processes_of(node: Any) -> list[int]:
    """A worker's own processes."""
    return [info.process.pid for some in node.all_processes.values() for info in some]


def start(address: str, out: Path, *more: str) -> subprocess.Popen[str]:
    words = [*ASKED, "--ray", address, "--out", str(out), *more]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def results(out: Path) -> dict[str, Any]:
    """Models and results, times aside."""
    found = {}
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        files = content(folder)
        about = files["run.json"].replace(str(out).encode(), b"OUT")
        found[folder.name] = (files["model.safetensors"], files["result"], files["log"], about)
    return found


def test_a_lost_workers_cell_is_run_again_and_the_table_is_the_same(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    there, here = tmp_path / "there", tmp_path / "here"
    process = start(ray_cluster.address, there, "--seeds", "0,1")
    began = time.monotonic()
    while not (lost := [node for node in ray_cluster.workers if is_at_work(node)]):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    ray_cluster.remove_node(lost[0], allow_graceful=False)
    assert call(*ASKED, "--seeds", "0,1", "--out", str(here)) == 0
    printed, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert printed.count(": done, ") == 4
    assert results(there) == results(here)
    rows = [json.loads((out / "compare.json").read_text())["rows"] for out in (there, here)]
    for row in (*rows[0], *rows[1]):
        del row["seconds"]
    assert rows[0] == rows[1]


def is_at_work(node: Any) -> bool:
    """Whether a cell is being learned by one of a node's processes: its folder is one of theirs."""
    ours = {str(pid) for pid in descendants(processes_of(node))}
    return any(lock.read_text() in ours for lock in Path("/tmp").glob("grown-*/*-default-*/.lock") if lock.exists())


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


def test_what_is_stopped_on_a_cluster_goes_on_anywhere(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    there, here = tmp_path / "there", tmp_path / "here"
    process = start(ray_cluster.address, there, "--epochs", "30")
    began = time.monotonic()
    while not any(is_at_work(node) for node in ray_cluster.workers):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    printed, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "go on with: the same command again" in error
    assert "stopping after this epoch" in printed
    assert (there / "scratch-default-0" / "run.json").is_file()  # what the worker had came back
    assert list(there.glob("scratch-default-0/resume/*")) or list(there.glob("scratch-default-0/progress.json"))
    for out in (there, here):
        assert call(*ASKED, "--epochs", "30", "--out", str(out)) == 0
    assert results(there) == results(here)
