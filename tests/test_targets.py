"""Targets: a number, Scratch, Fine-tune, the better of both, a result file, a callable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import grown
from grown.config import Config
from grown.errors import ConfigError, FileError
from grown.methods.finetune import Finetune
from grown.methods.scratch import Scratch
from helpers import Branchy, make_task, quick


def tasks() -> list[grown.Task]:
    return [make_task(f"t{number}", seed=number, noise=90.0) for number in range(3)]


def targets(target: object) -> list[float | None]:
    learner = grown.Learner(Branchy(), quick(target=target, expansions=0))
    return [learner.learn(task).target for task in tasks()]


def test_scratch_and_finetune_targets_are_those_methods_on_the_same_held_out_images() -> None:
    import torch

    torch.manual_seed(0)
    template = Branchy()
    found = {}
    for name, kind in (("scratch", Scratch), ("finetune", Finetune)):
        method = kind(template, quick())
        found[name] = [method.learn(task).val for task in tasks()]
        learner = grown.Learner(template, quick(target=name, expansions=0))
        assert [learner.learn(task).target for task in tasks()] == found[name]
    learner = grown.Learner(template, quick(target="best", expansions=0))
    best = [max(a, b) for a, b in zip(found["scratch"], found["finetune"], strict=True)]
    assert [learner.learn(task).target for task in tasks()] == best


def test_a_number_and_a_callable() -> None:
    assert targets(55.5) == [55.5] * 3
    assert targets(lambda task: 10.0 * len(task.classes)) == [30.0] * 3
    with pytest.raises(ConfigError, match="0 to 100"):
        targets(lambda _: 101.0)


def test_a_result_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"tasks": [{"name": f"t{i}", "val": 40.0 + i} for i in range(3)]}))
    assert targets(path) == [40.0, 41.0, 42.0]
    assert targets(str(path)) == [40.0, 41.0, 42.0]
    path.write_text(json.dumps({"tasks": [{"name": "other", "val": 40.0}]}))
    with pytest.raises(ConfigError, match=r"no task 't0'.*other"):
        targets(path)
    path.write_text("{")
    with pytest.raises(FileError, match=r"not a result\.json"):
        targets(path)
    with pytest.raises(FileError, match="No such file"):
        targets(tmp_path / "absent.json")


@pytest.mark.parametrize("target", [-1.0, 100.5, True, "scrach", float("nan")])
def test_targets_that_cannot_be(target: object) -> None:
    with pytest.raises(ConfigError):
        Config(target=target)  # type: ignore[arg-type]


def test_a_function_does_not_survive_a_file(tmp_path: Path) -> None:
    learner = grown.Learner(Branchy(), quick(target=lambda _: 0.0))
    learner.learn(tasks()[0])
    learner.save(tmp_path / "m.safetensors")
    loaded = grown.load(tmp_path / "m.safetensors")
    with pytest.raises(ConfigError, match="was a function"):
        loaded.learn(tasks()[1])
    loaded.config = loaded.config.replace(target=0.0)
    assert loaded.learn(tasks()[1]).target == 0.0


def test_finetune_needs_the_earlier_networks(tmp_path: Path) -> None:
    learner = grown.Learner(Branchy(), quick(target="finetune", expansions=0))
    learner.learn(tasks()[0])
    learner.save(tmp_path / "m.safetensors")
    loaded = grown.load(tmp_path / "m.safetensors")
    with pytest.raises(ConfigError, match="loaded model lacks"):
        loaded.learn(tasks()[1])
    assert loaded.tasks == ["t0"]
