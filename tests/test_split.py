"""CIFAR-100 Split as in APD's code: its division, its network, its recipe; and who decides by which protocol."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import grown
from grown.bench import presets
from grown.bench.request import Request
from grown.bench.resume import data_digests
from grown.bench.runner import run
from grown.config import Recipe
from grown.data import cifar100
from grown.errors import ConfigError, TaskError
from grown.methods.base import parts_of
from grown.models import lenet
from grown.report.comparison import remarks
from grown.report.tables import VALIDATED, decided_on, protocol_note
from grown.train.schedule import factor
from helpers import make_task, quick
from test_cifar100 import write_official


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_official(tmp_path_factory.mktemp("cifar"))


def rows(part: grown.data.Part) -> set[bytes]:
    return {image.numpy().tobytes() for image in part.images}


@pytest.mark.parametrize("protocol", ["honest", "paper"])
def test_the_seed_draws_which_1000_of_5000_decide(protocol: str, made: Path) -> None:
    task = cifar100.split_stream(made)[3]
    for seed in range(5):
        config = presets.benchmark("cifar100-split").config.replace(protocol=protocol, seed=seed)
        fit, decides = parts_of(task, config)
        assert (len(fit), len(decides), len(task.test)) == (4000, 1000, 1000)
        assert decides.labels.bincount().tolist() == [100] * 10  # each class alike
    assert task.classes == tuple(cifar100.FINE[30:40])


def test_splits_differ_by_their_seed() -> None:
    task = make_task("t", each=50)
    task = grown.Task("t", train=task.train, test=task.test, validation=0.2)
    parts = [parts_of(task, quick(protocol="paper", seed=seed)) for seed in range(5)]
    assert len({frozenset(rows(decides)) for _, decides in parts}) == 5
    for fit, decides in parts:
        assert not rows(fit) & rows(decides)
        assert rows(fit) | rows(decides) == rows(task.train)


def test_validation_images_may_be_named() -> None:
    source = make_task("t", each=10)
    task = grown.Task("t", train=source.train, test=source.test, validation=[9, 2, 15, 25])
    fit, decides = parts_of(task, quick(protocol="paper"))
    assert torch.equal(decides.images, source.train.images[[2, 9, 15, 25]])
    assert len(fit) == 26
    assert len(parts_of(task, quick())[1]) == 6  # `honest` draws its own, of all training images
    plain = grown.Task("t", train=source.train, test=source.test)
    assert parts_of(plain, quick(protocol="paper")) == (plain.train, plain.test)
    assert data_digests([task]) != data_digests([plain])
    for wrong, words in (
        ([], "are different ones of the 30"),
        ([3, 3], "different ones"),
        ([30], "different ones"),
        ([-1], "different ones"),
        (list(range(10)), "none to train on"),
        (1.0, "a share"),
        (0, "a share"),
    ):
        with pytest.raises(TaskError, match=words):
            grown.Task("t", train=source.train, test=source.test, validation=wrong)


def test_who_decided_is_named() -> None:
    about = {"benchmark": "cifar100-split", "protocol": "paper"}
    assert (protocol_note(about), decided_on(about)) == (VALIDATED, "validation")
    assert decided_on({**about, "benchmark": "cifar100-superclass"}) == "decided on test"
    assert remarks({**about, "cells": [], "notes": []}) == [VALIDATED]
    assert (protocol_note({**about, "protocol": "honest"}), decided_on({**about, "protocol": "honest"})) == (
        None,
        "held-out",
    )


def response_norm(x: np.ndarray) -> np.ndarray:
    """TensorFlow's: over four channels on either side, summed."""
    found = np.empty_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(0, c - 4) : c + 5]
        found[:, c] = x[:, c] / (1.0 + 0.001 / 9.0 * (near**2).sum(1)) ** 0.75
    return found


def test_lenet_is_apds() -> None:
    network = lenet()
    weights = {name: list(p.shape) for name, p in network.named_parameters() if name.endswith("weight")}
    assert list(weights.values()) == [[20, 3, 5, 5], [50, 20, 5, 5], [800, 3200], [500, 800], [10, 500]]
    assert sum(p.numel() for name, p in network.named_parameters() if "13" not in name and p.ndim > 1) == 2_986_500
    kinds = [type(part) for part in network]
    block = [nn.Conv2d, nn.ReLU, nn.LocalResponseNorm, nn.MaxPool2d]
    assert kinds == [*block, *block, nn.Flatten, *[nn.Linear, nn.ReLU] * 2, nn.Linear]
    x = torch.randn(2, 20, 4, 4) * 30
    assert np.allclose(network[2](x).numpy(), response_norm(x.double().numpy()), rtol=1e-5)


def test_the_recipe_is_apds() -> None:
    recipe = presets.recipe("split")
    assert (recipe.optimizer, recipe.rate, recipe.batch, recipe.epochs, recipe.weight_decay) == (
        "adam",
        1e-3,
        100,
        20,
        1e-4,
    )
    assert not any((recipe.crop, recipe.zoom, recipe.flip, recipe.cutout, recipe.colour, recipe.cutmix, recipe.mixup))
    assert (recipe.policy, recipe.smoothing, recipe.turns) == ("none", 0.0, False)
    steps = 40  # an epoch: 4000 images
    rates = [factor(recipe, step, 20 * steps) for step in range(20 * steps)]
    for epoch in range(20):
        assert set(rates[epoch * steps : (epoch + 1) * steps]) == {0.95**epoch}
    with pytest.raises(ConfigError, match="decay must"):
        Recipe(schedule="decay", decay=0.0)
    better = presets.recipe("split-best")
    assert (better.crop, better.flip, better.policy, better.schedule) == (4, True, "trivial", "one-cycle")
    preset = presets.benchmark("cifar100-split")
    assert (preset.backbone, preset.recipe) == ("lenet", "split")
    assert (preset.config.seed_size, preset.config.max_size) == (0.5, 1.2)


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar100, "EACH", {"train": 5, "test": 2})


@pytest.mark.parametrize("protocol", ["honest", "paper"])
def test_a_run_by_either_protocol(protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    root = write_official(tmp_path / "data")
    request = Request(
        "cifar100-split", method="scratch", protocol=protocol, data=root, tasks=2, epochs=2, width=0.1, threads=1,
        out=tmp_path / "run",
    )  # fmt: skip
    result, folder = run(request)
    assert result["recipe"] == "split"
    assert result["base_parameters"] == 2_986_500
    assert json.loads((folder / "run.json").read_text())["config"]["protocol"] == protocol
    assert all(len(task["stages"]) == 1 for task in result["tasks"])  # 4000 train, and no training on all follows


def test_real_pixels(real_cifar100: Path) -> None:
    tasks = grown.data.stream("cifar100-split", real_cifar100)
    assert [task.classes[0] for task in tasks[:3]] == ["apple", "bowl", "chair"]
    assert [(len(task.train), len(task.test), task.input_shape) for task in tasks] == [(5000, 1000, (3, 32, 32))] * 10
    sea = tasks[cifar100.FINE.index("sea") // 10]
    label = sea.classes.index("sea")
    images = sea.test.images[sea.test.labels == label].float()
    assert images[:, 2].mean() > images[:, 0].mean()  # the sea is blue
    along = (images[:, :, 1:] - images[:, :, :-1]).abs().mean()
    across = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs().mean()
    shuffled = images.reshape(len(images), -1)[:, torch.randperm(3072, generator=torch.Generator().manual_seed(0))]
    apart = (shuffled[:, 1:] - shuffled[:, :-1]).abs().mean()
    assert max(float(along), float(across)) < 0.4 * float(apart)  # neighbours are alike, as in a picture
