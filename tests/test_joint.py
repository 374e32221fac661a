"""Joint: one network for all tasks, trained at once, scored within each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import grown
from grown.bench import runner
from grown.bench.request import Request
from grown.bench.runner import run
from grown.data.normalisation import measure
from grown.data.part import Part
from grown.errors import ConfigError, TaskError
from grown.methods import load
from grown.methods.joint import Joint
from grown.train.evaluate import evaluate
from helpers import Branchy, make_task, quick


def tasks() -> list[grown.Task]:
    return [make_task(f"t{number}", classes=2 + number, each=24, seed=number) for number in range(3)]


def made(**changes: object) -> Joint:
    torch.manual_seed(0)
    return Joint(Branchy(), quick(recipe=grown.Recipe(epochs=6, batch=16), **changes))


def union(parts: list[Part]) -> Part:
    return Part(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))


def test_it_trains_once_and_each_task_has_its_rows_of_one_head() -> None:
    learner, epochs = made(), []
    learner.observer = lambda event: epochs.append(event["task"]) if event["event"] == "epoch" else None
    stream = tasks()
    learner.foresee(stream)
    assert learner.tasks == []
    reports = [learner.learn(task) for task in stream]
    assert epochs == ["t0"] * 6
    assert [report.grew for report in reports] == [True, False, False]
    assert reports[0].new_kernels["grown"] > 0
    assert [report.new_kernels["grown"] for report in reports[1:]] == [0, 0]
    assert reports[0].seconds > 10 * reports[1].seconds
    fit, held_out = zip(*(task.hold_out(0.2, 0) for task in stream), strict=True)
    head = []
    for task, report, mine in zip(stream, reports, held_out, strict=True):
        network = learner.network(task.name)
        assert learner.normalisation(task.name) == measure(union(list(fit)))
        assert report.val == evaluate(network, mine, learner.normalisation(task.name), "cpu").accuracy
        assert evaluate(network, task.test, learner.normalisation(task.name), "cpu").accuracy > 80.0
        head.append(network.state_dict()["out.weight"])
    assert [len(rows) for rows in head] == [2, 3, 4]
    shared = [{k: v for k, v in learner.network(t.name).state_dict().items() if "out." not in k} for t in stream]
    assert all(torch.equal(shared[0][key], other[key]) for other in shared[1:] for key in other)


def test_its_labels_are_told_apart_across_tasks() -> None:
    stream = tasks()
    learner = made()
    learner.foresee(stream)
    for task in stream:
        learner.learn(task)
    # One head over all classes: the task itself can be told from the highest logit.
    right = 0
    for number, task in enumerate(stream):
        x = learner.normalisation(task.name)(task.test.images)
        best = torch.stack([learner.network(other.name)(x).max(1).values for other in stream])
        right += int((best.argmax(0) == number).sum())
    assert right / sum(len(task.test) for task in stream) > 0.8


def test_it_is_stored_once() -> None:
    learner = made()
    stream = tasks()
    learner.foresee(stream)
    sizes = [learner.learn(task).size for task in stream]
    assert {size.size_x for size in sizes} == {1.0}
    assert sizes[0].parameters["heads"] == (20 + 1) * 9
    one = grown.methods.method("scratch")(Branchy(), quick(recipe=grown.Recipe(epochs=1))).learn(stream[0]).size
    assert sizes[-1].parameters["norms_and_biases"] == one.parameters["norms_and_biases"]


def test_a_file_from_between_goes_on_without_training(tmp_path: Path) -> None:
    whole, stream = made(), tasks()
    whole.foresee(stream)
    whole.learn(stream[0])
    whole.save(tmp_path / "m.safetensors")
    loaded = grown.load(tmp_path / "m.safetensors")
    assert loaded.tasks == ["t0"]
    with pytest.raises(ConfigError, match="unknown task"):
        loaded.network("t1")
    loaded.observer = lambda event: pytest.fail("trained again") if event["event"] == "epoch" else None
    loaded.foresee(stream)
    for task in stream[1:]:
        assert loaded.learn(task).val == whole.learn(task).val
    assert all(torch.equal(loaded.state().tensors[key], value) for key, value in whole.state().tensors.items())
    assert loaded.state().meta == whole.state().meta


def test_short_decisions_a_refit_and_small_kernels_as_with_the_other_methods(tmp_path: Path) -> None:
    learner, stream = made(refit=True, decide=0.5, kernel_format="bf16"), tasks()
    learner.foresee(stream)
    report = [learner.learn(task) for task in stream][-1]
    assert [(stage.name, stage.epochs, stage.val) for stage in report.stages] == [
        ("train", 3, report.val),
        ("refit", 6, None),
    ]
    assert learner.normalisation("t0") == measure(union([task.train for task in stream]))
    assert report.size.bytes["kernels"] == 2 * report.size.parameters["kernels"]
    learner.save(tmp_path / "m.safetensors")
    x = torch.randn(3, 1, 8, 8)
    loaded = grown.load(tmp_path / "m.safetensors")
    assert all(torch.equal(loaded.network(task.name)(x), learner.network(task.name)(x)) for task in stream)


def test_more_tasks_train_all_anew() -> None:
    learner, stream = made(), tasks()
    learner.foresee(stream[:2])
    for task in stream[:2]:
        learner.learn(task)
    with pytest.raises(ConfigError, match="'t0' was learned, but is not among"):
        learner.foresee(stream[2:])
    learner.foresee(stream)
    assert learner.learn(stream[2]).grew
    fresh = made()
    fresh.foresee(stream)
    for task in stream:
        fresh.learn(task)
    x = torch.randn(3, 1, 8, 8)
    assert all(torch.equal(learner.network(task.name)(x), fresh.network(task.name)(x)) for task in stream)


def test_what_was_not_foreseen_is_refused() -> None:
    learner, stream = made(), tasks()
    with pytest.raises(ConfigError, match=r"'t0' was not foreseen.*call foresee\(tasks\)"):
        learner.learn(stream[0])
    with pytest.raises(ConfigError, match="no task is foreseen"):
        learner.foresee([])
    with pytest.raises(TaskError, match="foreseen twice"):
        learner.foresee([stream[0], stream[0]])
    with pytest.raises(TaskError, match=r"\[1, 9, 9\]"):
        learner.foresee([stream[0], make_task("odd", shape=(9, 9, 1))])
    learner.foresee(stream[:2])
    with pytest.raises(ConfigError, match="'t2' was not foreseen"):
        learner.learn(stream[2])
    with pytest.raises(TaskError, match="but was foreseen with"):
        learner.learn(make_task("t0", classes=4))


def test_the_runner_foresees(tmp_path: Path) -> None:
    result, _ = run(Request(method="joint", tasks=3, epochs=2, out=tmp_path / "run"))
    assert result["size_x"] == 1.0
    assert result["forgetting"] == 0
    assert [task["grew"] for task in result["tasks"]] == [True, False, False]


def test_a_run_puts_tasks_that_were_trained_together_into_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def note(path: Path) -> Any:
        read.append(path)
        return load(path)

    monkeypatch.setattr(runner, "load", note)
    events: list[str] = []
    request = Request(method="joint", tasks=3, epochs=1, out=tmp_path / "run")
    result, where = run(request, lambda event: events.append(event["event"]))
    assert len(read) == 1
    assert [len(row) for row in result["accuracy_matrix"]] == [1, 2, 3]
    assert [task["test"] for task in result["tasks"]] == result["accuracy_matrix"][-1]
    assert events.count("tested") == events.count("task") == 3
    assert load(where / "model.safetensors").tasks == [task["name"] for task in result["tasks"]]
