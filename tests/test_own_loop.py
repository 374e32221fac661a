"""A researcher keeps the loop: open, train with plain PyTorch and another loss, expand, commit."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import grown
from grown.errors import ConfigError
from grown.methods.grown import algorithm
from helpers import Branchy, make_task, quick


def test_a_plain_loop_with_another_loss_learns() -> None:
    learner = grown.Learner(Branchy(), quick(seed_size=0.5, growth="open"))
    for number in range(2):
        task = make_task(f"t{number}", each=30, seed=number)
        stage = learner.open(task)
        x, y = stage.normalise(task.train.images), task.train.labels
        loader = DataLoader(TensorDataset(x, y), batch_size=15, shuffle=True)
        for expanded in (False, True):
            if expanded:
                stage.expand()
            optimizer = torch.optim.AdamW(stage.parameter_groups(), lr=5e-3)
            for _ in range(12):
                for images, labels in loader:
                    loss = torch.nn.functional.multi_margin_loss(stage.network(images), labels) + stage.penalty()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        report = stage.commit()
        assert report.val > 80.0
        tested = learner.predict(task.name, task.test.images.permute(0, 2, 3, 1).numpy()).argmax(1)
        assert float((tested == task.test.labels).float().mean()) > 0.8


def test_parameter_groups_are_named_and_frozen_kernels_are_no_parameters() -> None:
    learner = grown.Learner(Branchy(), quick(retrain=False, growth="open"))
    learner.learn(make_task("t0"))
    stage = learner.open(make_task("t1"))
    groups = {group["name"]: group["params"] for group in stage.parameter_groups()}
    assert list(groups) == ["weights", "norms", "scores"]
    assert groups["weights"] == [stage.network.head.weight]
    listed = {id(p) for params in groups.values() for p in params}
    assert listed == {id(p) for p in stage.network.parameters()}
    for name, layer in stage.network.masked().items():
        assert torch.equal(layer.frozen, learner.banks[name].weight)
        assert "frozen" in dict(layer.named_buffers())


def test_learn_is_written_with_the_public_steps_alone() -> None:
    source = inspect.getsource(algorithm)
    assert "stage._" not in source
    assert "learner._" not in source
    for step in (
        "learner.open(",
        "stage.parameter_groups()",
        "stage.penalty",
        "stage.expand()",
        "stage.settle(",
        "stage.commit(",
    ):
        assert step in source


def test_a_stage_is_committed_once_and_an_abandoned_one_leaves_no_trace() -> None:
    learner = grown.Learner(Branchy(), quick())
    learner.learn(make_task("t0"))
    before = learner.state()
    abandoned = learner.open(make_task("t1"))
    abandoned.expand()
    after = learner.state()
    assert before.meta == after.meta
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())
    stage = learner.open(make_task("t1"))
    with pytest.raises(ConfigError, match="t1"):
        abandoned.commit()
    stage.commit()
    with pytest.raises(ConfigError, match="committed already"):
        stage.commit()
