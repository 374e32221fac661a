"""The contract that every registered method keeps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import grown
from grown.data.normalisation import measure
from grown.errors import ConfigError, TaskError
from grown.methods import METHODS, method
from grown.methods.base import probe
from grown.train.evaluate import evaluate
from helpers import Branchy, foresee, make_task, quick


def three() -> list[grown.Task]:
    return [make_task(f"t{number}", classes=2 + number, seed=number) for number in range(3)]


def learned(name: str, seed: int = 0) -> object:
    torch.manual_seed(0)
    made = method(name)(Branchy(), quick(recipe=grown.Recipe(epochs=4, batch=16), seed=seed))
    for task in foresee(made, three()):
        made.learn(task)
    return made


@pytest.mark.parametrize("name", sorted(METHODS))
def test_it_learns_and_reports(name: str) -> None:
    torch.manual_seed(0)  # the template's own draw: a rare one learns too little in eight epochs
    made = method(name)(Branchy(), quick(recipe=grown.Recipe(epochs=8, batch=16), seed_size=0.6))
    for task in foresee(made, [make_task(f"t{number}", each=24, seed=number) for number in range(2)]):
        report = made.learn(task)
        assert report.name == task.name
        # A method whose last training is another by definition (PackNet's, CPG's, DEN's) has a whole one before it.
        assert 8 in [stage.epochs for stage in report.stages]
        assert report.size.bytes["total"] > 0
        assert set(report.new_kernels) == {"released", "grown"}
        score = evaluate(made.network(task.name), task.test, made.normalisation(task.name), "cpu")
        assert score.accuracy > 80.0
    assert made.tasks == ["t0", "t1"]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_it_repeats_under_a_seed(name: str) -> None:
    one, other = learned(name).state(), learned(name).state()  # type: ignore[attr-defined]
    assert one.meta == other.meta
    assert all(torch.equal(one.tensors[key], tensor) for key, tensor in other.tensors.items())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_it_saves_loads_and_goes_on(name: str, tmp_path: Path) -> None:
    made = learned(name)
    made.save(tmp_path / "m.safetensors")  # type: ignore[attr-defined]
    loaded = grown.load(tmp_path / "m.safetensors")
    assert type(loaded) is METHODS[name]
    x = torch.randn(3, 1, 8, 8)
    for task in ("t0", "t1", "t2"):
        assert torch.equal(loaded.network(task)(x), made.network(task)(x))  # type: ignore[attr-defined]
    assert loaded.size() == made.size()  # type: ignore[attr-defined]
    assert loaded.size().bytes["total"] == (tmp_path / "m.safetensors").stat().st_size
    loaded.learn(foresee(loaded, [*three(), make_task("t3")])[-1])
    assert loaded.tasks == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_it_forgets_exactly_as_much_as_it_claims(name: str) -> None:
    made = method(name)(Branchy(), quick())
    x = torch.randn(5, 1, 8, 8)
    known: dict[str, torch.Tensor] = {}
    for new in foresee(made, [make_task(f"t{number}", seed=number) for number in range(3)]):
        made.learn(new)
        known[new.name] = made.network(new.name)(x)
        if not made.forgets:
            for task, logits in known.items():
                assert torch.equal(made.network(task)(x), logits)
    if made.forgets:  # and what it says of itself is said of its present networks
        assert not any(torch.equal(made.network(task)(x), known[task]) for task in ("t0", "t1"))
        for number, task in enumerate(made.tasks, start=1):
            now = probe(made.network(task), (1, 8, 8))
            assert torch.equal(made.state().tensors[f"task/{number}/probe"], now)


def test_what_forgets_is_known() -> None:
    assert {name for name, made in METHODS.items() if not made.forgets} >= {
        "grown",
        "scratch",
        "finetune",
        "joint",
        "cpg",
        "packnet",
        "wsn",
        "piggyback",
        "ksm",
        "supsup",
        "adapter",
        "grow",
        "pnn",
    }
    assert {name for name, made in METHODS.items() if made.forgets} >= {
        "sequential",
        "ewc",
        "si",
        "mas",
        "lwf",
        "replay",
        "apd",
        "den",
    }


@pytest.mark.parametrize("name", sorted(METHODS))
def test_its_networks_are_plain(name: str) -> None:
    network = learned(name).network("t1")  # type: ignore[attr-defined]
    for part in network.modules():
        assert type(part).__module__.startswith("torch.")
    assert not network.training
    assert network(torch.randn(1, 1, 8, 8)).shape == (1, 3)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_it_refuses_what_does_not_fit(name: str) -> None:
    made = learned(name)
    with pytest.raises(TaskError, match="unique"):
        made.learn(make_task("t0"))  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match=r"\[1, 9, 9\]"):
        made.learn(make_task("odd", shape=(9, 9, 1)))  # type: ignore[attr-defined]
    for ask in (made.network, made.normalisation):  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="unknown task"):
            ask("absent")


@pytest.mark.parametrize("name", ["scratch", "finetune", "joint"])
def test_a_refit_of_a_plain_network_is_a_stage_of_its_own(name: str) -> None:
    task = make_task("t", noise=90.0)
    made = method(name)(Branchy(), quick())
    once = made.learn(*foresee(made, [task]))
    made = method(name)(Branchy(), quick(refit=True))
    twice = made.learn(*foresee(made, [task]))
    assert [stage.name for stage in once.stages] == ["train"]
    assert [(stage.name, stage.val) for stage in twice.stages] == [("train", twice.val), ("refit", None)]
    assert made.normalisation("t") == measure(task.train)


def test_scratch_counts_a_network_a_task_and_finetune_starts_from_a_copy() -> None:
    scratch, finetune = learned("scratch"), learned("finetune")
    assert scratch.size().size_x == 3.0  # type: ignore[attr-defined]
    assert finetune.size().size_x == 3.0  # type: ignore[attr-defined]
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(scratch.network("t0")(x), finetune.network("t0")(x))  # type: ignore[attr-defined]
    assert not torch.equal(scratch.network("t1")(x), finetune.network("t1")(x))  # type: ignore[attr-defined]


def test_seconds_are_counted_once() -> None:
    """Whether a network is trained when its task is learned or together with others before."""
    for together in (False, True):
        method = grown.METHODS["scratch"](grown.models.convnet(), quick(refit=True), input_shape=(1, 8, 8))
        tasks = [make_task(f"t{number}") for number in range(2)]
        began = time.perf_counter()
        if together:
            method._train(tasks)
        reports = [method.learn(task) for task in tasks]
        spent = time.perf_counter() - began
        trained = sum(stage.seconds for report in reports for stage in report.stages)
        assert trained < sum(report.seconds for report in reports) <= spent
