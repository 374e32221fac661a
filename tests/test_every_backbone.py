"""Every method on every backbone of the library: it learns, keeps what it claims to keep, comes back from its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import grown
from grown.methods import METHODS
from grown.models import BACKBONES, backbone
from helpers import foresee, make_task, quick

# One network of each structure; the others are built of the same blocks.
ALWAYS = {"convnet", "lenet", "resnet18", "vgg16-bn"}
SHAPE = (32, 32, 3)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in sorted(BACKBONES)]
)
def test_it_learns_and_keeps(name: str, method: str, tmp_path: Path) -> None:
    made = METHODS[method](
        backbone(name, channels=3, width=0.1), quick(recipe=grown.Recipe(epochs=1, batch=8), expansions=1, target=100.0)
    )
    tasks = foresee(
        made, [make_task(f"t{number}", classes=2 + number, shape=SHAPE, each=8, seed=number) for number in range(2)]
    )
    x = torch.randn(4, 3, 32, 32)
    made.learn(tasks[0])
    first = made.network("t0")(x)
    made.learn(tasks[1])
    assert made.forgets or torch.equal(made.network("t0")(x), first)
    made.save(tmp_path / "model.safetensors")
    loaded = grown.load(tmp_path / "model.safetensors")
    for number, task in enumerate(made.tasks):
        logits = made.network(task)(x)
        assert logits.shape == (4, 2 + number)
        assert logits.isfinite().all()
        assert torch.equal(loaded.network(task)(x), logits)
