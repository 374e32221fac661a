"""The picture of accuracy over bytes: what becomes a point, and what its title says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import accuracy_over_bytes as picture
from helpers import write_result


def write(folder: Path, method: str, label: str, x: float, y: float, seed: int = 0, **more: Any) -> None:
    write_result(folder, method, label, seed, bytes_x=x, average_accuracy=y, **more)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for seed, y in enumerate((80.0, 81.0, 82.0)):
        write(folder, "grown", "default", 0.4, y, seed)
        write(folder, "scratch", "curve:narrow", 0.2, y - 5, seed)
    write(folder, "grown", "curve", 0.1, 78.0)
    write(folder, "grown", "curve", 0.8, 82.0)
    write(folder, "grown", "ablation:grow-only", 0.4, 70.0)
    write(folder, "scratch", "quick", 0.4, 70.0, backbone="lenet")
    write(folder, "scratch", "default", 0.8, 80.0)
    write(folder, "joint", "default", 0.5, 85.0)
    write(folder / "exploration", "grown", "default", 0.01, 10.0)
    return folder


def test_seeds_are_one_point_and_a_curves_runs_are_their_own(results: Path) -> None:
    points = [(p.method, p.label, p.x, p.y, len(p.accuracy)) for p in picture.read(results)]
    assert points == [
        ("grown", "curve", 0.1, 78.0, 1),
        ("scratch", "curve:narrow", 0.2, 76.0, 3),
        ("grown", "default", pytest.approx(0.4), 81.0, 3),
        ("joint", "default", 0.5, 85.0, 1),
        ("grown", "curve", 0.8, 82.0, 1),
        ("scratch", "default", 0.8, 80.0, 1),
    ]
    assert picture.read(results)[2].bars[1] == 1.0


def test_the_title_compares_at_equal_bytes(results: Path) -> None:
    # Half way between 0.2x and 0.8x on a log axis Scratch is at 78.
    said = "At 0.4x of the bytes, GROWN (40 epochs a task) is 3.0 points above\nScratch of the same size"
    assert picture.finding(picture.read(results)) == f"{said} (40 epochs)"
    # With more epochs Scratch is a line of its own, and the better line counts.
    for x, y in ((0.2, 79.0), (0.8, 81.0)):
        write(results, "scratch", f"curve:{x}", x, y, tasks=[{"stages": [{"epochs": 10}, {"epochs": 120}]}] * 3)
    assert picture.finding(picture.read(results)) == said.replace("3.0", "1.0") + " (120 epochs)"
    alone = [point for point in picture.read(results) if point.method != "scratch"]
    assert picture.finding(alone) == "Accuracy over the bytes of the whole saved file"


def test_it_is_drawn_and_the_same_every_time(results: Path, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        picture.main(["--results", str(results), "--out", str(tmp_path / name)])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    with pytest.raises(SystemExit, match="no result to draw"):
        picture.main(["--results", str(tmp_path / "absent")])
    with pytest.raises(SystemExit, match=r"a picture is an .svg or a .png"):
        picture.main(["--results", str(results), "--out", str(tmp_path / "a.gif")])
