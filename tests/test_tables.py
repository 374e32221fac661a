"""Tables out of result files: which rows, in which order, over which seeds; and what may not stand in one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tables
import task_seconds
from helpers import write_result as write


def rows(folder: Path) -> list[list[str]]:
    lines = tables.stream_table(folder, count_seeds=True).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_rows_stand_in_their_order_with_means_over_seeds(tmp_path: Path) -> None:
    for method, label in (
        ("joint", "default"),
        ("grown", "ablation:+retrain"),
        ("grown", "ablation:grow-only"),
        ("scratch", "equal-bytes-small"),
        ("scratch", "equal-bytes"),
        ("scratch", "default"),
        ("scratch", "curve"),
        ("finetune", "default"),
        ("grown", "small"),
    ):
        write(tmp_path, method, label)
    for seed in (2, 0, 1):
        write(tmp_path, "grown", "default", seed)
    write(tmp_path / "exploration", "grown", "default", recipe="fast", average_accuracy=1.0)
    header, _, *found = rows(tmp_path)
    assert header[1:] == [
        "average accuracy (%)", "the paper", "seeds", "forgetting", "tasks that grew", "size", "bytes", "seconds"
    ]  # fmt: skip
    assert [row[0] for row in found] == [
        "**GROWN**",
        "**GROWN**, small",
        "Scratch, full width",
        "Scratch at equal bytes",
        "Scratch at the small one's bytes",
        "Fine-tune, full width",
        "all tasks at once (joint), not continual",
        "GROWN's growth alone",
        "+ released kernels trained again",
    ]
    theirs = "81.52 at 1.5x, prints 82.2"
    assert found[0][1:] == ["81.00 ± 1.00", theirs, "3", "0", "0 to 1 of 2", "0.25 ± 0.00x", "0.62 ± 0.25x", "110"]
    assert found[1][1:] == ["80.00", "", "1", "0", "0 of 2", "0.25x", "0.38x", "100"]
    assert found[2][2] == "78.75 at 20x"  # as it is printed
    assert found[2][5] == ""
    assert [row[2] for row in found[-2:]] == ["76.65", "+0.7"]


def test_seconds_are_of_runs_that_were_alone(tmp_path: Path) -> None:
    write(tmp_path, "grown", "default", 0, jobs=1)
    write(tmp_path, "grown", "default", 1, jobs=5)
    write(tmp_path, "scratch", "default", 0, jobs=5)
    assert [row[-1] for row in rows(tmp_path)[2:]] == ["100", "(100)"]


def test_each_tasks_numbers_stand_above_the_papers(tmp_path: Path) -> None:
    tasks = [{"test": 75.0, "size_x": 0.125}, {"test": 80.0, "size_x": 0.25}]
    matrix = [[75.0], [70.0, 80.0]]  # the first was forgotten in part: what is left of it counts, as in the average
    write(tmp_path, "grown", "default", 0, tasks=tasks, accuracy_matrix=matrix)
    write(tmp_path, "grown", "default", 1, tasks=tasks, accuracy_matrix=[[75.0], [71.0, 82.0]])
    write(tmp_path, "scratch", "equal-bytes", 0, tasks=tasks, accuracy_matrix=matrix)
    write(tmp_path, "scratch", "longer", 0, tasks=tasks, accuracy_matrix=matrix)
    lines = tables.task_table(tmp_path, "test", 1).splitlines()
    assert lines[0] == "| task | 1 | 2 |"
    assert lines[2] == "| **GROWN** | 70.5 | 81.0 |"
    assert lines[3].startswith("| *the paper's* | 67.2 | 76.8 | 79.6 |")
    assert lines[4:] == ["| Scratch at equal bytes | 70.0 | 80.0 |"]
    sizes = tables.task_table(tmp_path, "size_x", 2).splitlines()
    assert sizes[2] == "| **GROWN** | 0.12 | 0.25 |"
    assert sizes[3].startswith("| *the paper's* | 0.30 | 0.40 |")
    assert tables.task_table(tmp_path / "nothing", "test", 1) == ""


def test_what_is_not_comparable_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", "grown", "default")
    write(tmp_path / "a", "scratch", "default", recipe="fast")
    with pytest.raises(SystemExit, match=r"scratch-default-0-1.json has recipe 'fast', but grown-default-0-0.json has"):
        rows(tmp_path / "a")
    write(tmp_path / "b", "grown", "default")
    write(tmp_path / "b", "scratch", "default", protocol="paper")
    with pytest.raises(SystemExit, match="protocol 'paper'"):
        rows(tmp_path / "b")
    write(tmp_path / "c", "grown", "default")
    write(tmp_path / "c", "grown", "default")
    with pytest.raises(SystemExit, match="both grown, default, seed 0"):
        rows(tmp_path / "c")
    write(tmp_path / "d", "grown", "default", 0, device="cuda")
    write(tmp_path / "d", "grown", "default", 1, device="cpu")  # seconds of both would have one mean
    with pytest.raises(SystemExit, match=r"device 'cpu', but grown-default-0-0.json has 'cuda'"):
        rows(tmp_path / "d")
    write(tmp_path / "e", "grown", "default", 0, device="cuda")
    write(tmp_path / "e", "grown", "default", 1, device="cuda:1")
    assert rows(tmp_path / "e")[2][3] == "2"


def test_a_table_needs_a_place_as_soon_as_it_has_results(tmp_path: Path) -> None:
    made = {"some": lambda: tables.stream_table(tmp_path)}
    assert tables.fill("text", made, "PAGE.md") == "text"
    write(tmp_path, "grown", "default")
    with pytest.raises(SystemExit, match=r"PAGE.md has no place for a table: <!-- table: some -->"):
        tables.fill("text", made, "PAGE.md")
    filled = tables.fill("<!-- table: some -->\nold\n<!-- end -->", made, "PAGE.md")
    assert "old" not in filled
    assert "| **GROWN** | 80.00 |" in filled


def test_a_methods_page_has_every_stream_where_it_was_run_beside_grown(tmp_path: Path) -> None:
    for seed in (0, 1):
        write(tmp_path / "cifar100-superclass", "cpg", "default", seed, average_accuracy=70.0 + seed)
    write(tmp_path / "cifar100-superclass", "grown", "default")
    write(tmp_path / "cifar100-superclass", "cpg", "published", recipe="paper", average_accuracy=75.0)
    write(tmp_path / "miniimagenet-20", "cpg", "default", benchmark="miniimagenet-20")
    found = [line.strip("| ").split(" | ") for line in tables.method_table(tmp_path, "cpg").splitlines()[2:]]
    assert [row[:2] for row in found] == [
        ["CIFAR-100 Superclass", "70.50 ± 0.71"],
        ["CIFAR-100 Superclass, at its published schedule", "75.00"],
        ["mini-ImageNet", "80.00"],
    ]
    assert found[0][2].startswith("81.25 at 1.5x")
    assert [row[3] for row in found] == ["80.00", "", ""]  # GROWN's, where it has one by the same schedule
    assert "GROWN" not in tables.method_table(tmp_path, "grown").splitlines()[0]
    assert tables.method_table(tmp_path, "den") == ""


def test_the_overview_has_a_row_for_each_of_the_papers_streams(tmp_path: Path) -> None:
    assert tables.overview_table(tmp_path) == ""
    for seed in (0, 1):
        write(tmp_path / "cifar100-superclass", "grown", "default", seed)
    write(tmp_path / "cifar100-superclass", "scratch", "equal-bytes")
    write(tmp_path / "cifar100-superclass", "scratch", "longer", recipe="fast")  # in no column, so not in the way
    write(tmp_path / "digits-methods", "grown", "default", benchmark="digits")
    write(tmp_path / "miniimagenet-20", "scratch", "default", benchmark="miniimagenet-20")  # GROWN is not there yet
    header, _, *found = tables.overview_table(tmp_path).splitlines()
    assert header == "|  | GROWN | Scratch at equal bytes | Scratch, full width | the paper's GROWN |"
    ours = "80.50 ± 0.71, 2.0 MB"
    assert found == [f"| CIFAR-100 Superclass | {ours} | 80.00, 1.5 MB |  | 81.52 at 1.5x, prints 82.2 |"]
    write(tmp_path / "cifar100-superclass", "scratch", "default", recipe="fast")
    with pytest.raises(SystemExit, match="not comparable"):
        tables.overview_table(tmp_path)


def test_published_schedules_are_compared_by_time(tmp_path: Path) -> None:
    assert tables.published_table(tmp_path) == ""
    longer = [{"grew": False, "stages": [{"epochs": 100}, {"epochs": epochs}]} for epochs in (20, 40, 60)]
    write(tmp_path, "cpg", "published", seconds={"total": 450.0}, tasks=longer)
    assert tables.published_table(tmp_path).endswith("| 140 | 450 |  |")
    write(tmp_path, "grown", "published", jobs=4)
    write(tmp_path, "grown", "default", recipe="fast")
    lines = tables.published_table(tmp_path).splitlines()[2:]
    assert [line.split(" | ")[-3:] for line in lines] == [["40", "(100)", "1.0 times |"], ["140", "450", "4.5 times |"]]
    write(tmp_path, "grown", "published", 1, seconds={"total": 90.0})  # alone: the one that counts
    assert tables.published_table(tmp_path).endswith("| 140 | 450 | 5.0 times |")


def test_published_schedules_of_a_stream_that_the_paper_has_not(tmp_path: Path) -> None:
    write(tmp_path, "grown", "published")
    assert "the paper" in tables.published_table(tmp_path)
    write(tmp_path / "digits", "grown", "published", benchmark="digits")
    assert "the paper" not in tables.published_table(tmp_path / "digits")


def test_the_seconds_of_a_task_are_read_from_a_runs_log(tmp_path: Path) -> None:
    events = [
        (0.0, {"event": "run"}),
        *((1.0, {"event": "task", "number": 1}), (1.5, {"event": "stage"}), (3.0, {"event": "settled"})),
        *((3.5, {"event": "stage"}), (6.0, {"event": "committed"}), (6.25, {"event": "tested"})),
        *((7.0, {"event": "task", "number": 2}), (7.75, {"event": "stage"}), (9.0, {"event": "committed"})),
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"seconds": at, **event}) + "\n" for at, event in events))
    assert task_seconds.read(path) == [
        {"task": 1, "opening": 0.5, "learning": 4.5, "testing": 0.25},
        {"task": 2, "opening": 0.75, "learning": 1.25},  # as it stands while it is learned
    ]
