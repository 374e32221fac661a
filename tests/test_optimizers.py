"""Optimizers: torch's own updates to the last bit, without torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from grown.train.optimizers import SGD, Adam, Optimizer


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in ((4, 3, 3, 3), (7,), (5, 2))]


def updated(optimizer: Any, mine: list[nn.Parameter]) -> list[nn.Parameter]:
    torch.manual_seed(1)
    for step in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)
        for number, parameter in enumerate(mine):
            parameter.grad = torch.randn(parameter.shape) if number < 2 else None
        optimizer.step()
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in mine)
    return mine


def groups(mine: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": mine[:1], "weight_decay": 0.01}, {"params": mine[1:]}]


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_updates_are_torchs_own(kind: str) -> None:
    mine, theirs = parameters(), parameters()
    ours: Optimizer = Adam(groups(mine), 0.1) if kind == "adam" else SGD(groups(mine), 0.1, 0.9 * (kind == "momentum"))
    reference: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD(groups(theirs), lr=0.1, fused=True),
        "momentum": lambda: torch.optim.SGD(groups(theirs), lr=0.1, momentum=0.9, nesterov=True, fused=True),
        "adam": lambda: torch.optim.Adam(groups(theirs), lr=0.1, fused=True),
    }[kind]()
    for one, other in zip(updated(ours, mine), updated(reference, theirs), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(mine[0], parameters()[0])
    assert torch.equal(mine[2], parameters()[2])  # it had no gradient


def test_a_training_loads_no_compiler() -> None:
    """It would take longer than some trainings."""
    program = (
        "import sys, grown\n"
        "from grown.config import Recipe\n"
        "task = next(iter(grown.data.stream('digits')))\n"
        "recipe = Recipe(epochs=1, batch=64)\n"
        "learner = grown.Learner(grown.models.convnet(width=0.25), grown.Config(recipe=recipe, threads=1))\n"
        "learner.learn(task)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=120)
