"""Who decides, in which format kernels are kept, and what happens where memory ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import grown
from grown.bench.request import Request
from grown.bench.runner import run
from grown.config import Recipe
from grown.methods.base import parts_of
from grown.train import steps
from helpers import call, make_task, quick


def test_by_the_papers_protocol_the_test_images_decide_and_all_others_train() -> None:
    task = make_task("t")
    honest, paper = quick(), quick(protocol="paper")
    fit, decides = parts_of(task, honest)
    assert len(fit) + len(decides) == len(task.train)
    assert parts_of(task, paper) == (task.train, task.test)
    with pytest.raises(grown.ConfigError, match="refit must be False"):
        quick(protocol="paper", refit=True)


@pytest.mark.parametrize("method", ["grown", "scratch", "cpg"])
def test_the_papers_protocol_is_named_wherever_it_is_shown(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "run"
    asked = ["run", "--protocol", "paper", "--method", method, "--tasks", "2", "--epochs", "2", "--target", "90"]
    assert call(*asked, "--out", str(where)) == 0
    assert "the test images took the decisions" in capsys.readouterr().out
    for name in ("result.json", "run.json"):
        assert json.loads((where / name).read_text())["protocol"] == "paper"
    assert call("inspect", str(where / "model.safetensors")) == 0
    assert "the test images took the decisions" in capsys.readouterr().out
    result = json.loads((where / "result.json").read_text())
    assert [task["val"] for task in result["tasks"]] == [task["test"] for task in result["tasks"]]
    assert call("run", "--protocol", "bold", "--out", str(tmp_path / "b")) == 2
    assert "Choices: honest, paper" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["grown", "scratch", "adapter", "grow", "pnn"])
def test_kernels_kept_as_bf16_are_half_as_large_and_answer_the_same(name: str, tmp_path: Path) -> None:
    sizes = {}
    for kind in ("fp32", "bf16"):
        config = quick(kernel_format=kind, target=100.0, expansions=1)
        method = grown.METHODS[name](grown.models.convnet(), config)
        for number in range(2):
            method.learn(make_task(f"t{number}", noise=100.0))
        x = torch.randn(4, 1, 8, 8)
        before = [method.network(task)(x) for task in method.tasks]
        method.save(tmp_path / kind)
        loaded = grown.load(tmp_path / kind)
        for task, answer in zip(loaded.tasks, before, strict=True):
            assert torch.equal(loaded.network(task)(x), answer)
        sizes[kind] = method.size()
        with safe_open(str(tmp_path / kind), "pt") as file:
            kernels = [file.get_tensor(key).dtype for key in file.keys() if key.endswith("kernels")]  # noqa: SIM118
        assert set(kernels) == {torch.bfloat16 if kind == "bf16" else torch.float32}
    a_weight = {kind: size.bytes["kernels"] / size.parameters["kernels"] for kind, size in sizes.items()}
    assert a_weight == {"fp32": 4.0, "bf16": 2.0}


def test_out_of_memory_says_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    monkeypatch.setattr(steps, "loss_of", full)
    assert call("run", "--tasks", "1", "--target", "0", "--out", str(tmp_path / "a")) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert "out of memory; lower the batch (--set batch=16 instead of 32)" in said


def test_trainings_together_come_out_as_alone() -> None:
    """On the CPU one after the other; on a GPU tests/test_gpu.py compares them."""
    states = []
    for together in (False, True):
        torch.manual_seed(0)
        method = grown.METHODS["scratch"](grown.models.convnet(), quick(), input_shape=(1, 8, 8))
        tasks = [make_task(f"t{number}") for number in range(3)]
        if together:
            method._train(tasks)
        for task in tasks:
            method.learn(task)
        states.append([method.network(task.name).state_dict() for task in tasks])
    for alone, other in zip(*states, strict=True):
        assert all(torch.equal(other[key], value) for key, value in alone.items())


def test_the_trainings_that_only_decide_are_shorter_for_every_method(tmp_path: Path) -> None:
    settings = ("refit=true", "decide=0.5", "epochs=4")
    for method in ("grown", "scratch", "joint", "adapter", "grow", "pnn"):
        request = Request(method=method, tasks=2, target=0.0, out=tmp_path / method, settings=settings)
        for task in run(request)[0]["tasks"]:
            assert [(stage["epochs"], stage["val"] is None) for stage in task["stages"]] == [(2, False), (4, True)]


def test_a_target_may_have_to_be_exceeded() -> None:
    for margin, stages in ((0.0, 1), (-0.5, 2)):
        torch.manual_seed(0)
        config = quick(recipe=Recipe(epochs=8, batch=16), margin=margin, target=100.0, expansions=1, max_size=4.0)
        learner = grown.Learner(grown.models.convnet(), config)
        learner.learn(make_task("t0", noise=1.0))
        report = learner.learn(make_task("t1", noise=1.0))
        assert (report.val, len(report.stages)) == (100.0, stages)
