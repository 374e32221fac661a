"""Never forgets, to the last bit: for every backbone, after every later task, and in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import grown
from grown.models import BACKBONES, backbone
from helpers import Branchy, make_task, quick, shake

TASKS = 5
BATCHES = (1, 64)
NAMES = [*sorted(BACKBONES), "branchy", "mixed"]


class Mixed(nn.Module):
    """Depthwise convolution, group norm, norm without affine parameters, sigmoid, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1),
            nn.GroupNorm(4, 12),
            nn.SiLU(),
            nn.Conv2d(12, 12, 3, stride=2, padding=1, groups=12),
            nn.BatchNorm2d(12, affine=False),
            nn.ReLU6(),
            nn.Conv2d(12, 16, 1, padding_mode="reflect"),
            nn.Sigmoid(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.hidden = nn.Sequential(nn.Linear(16 * 64, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Dropout(0.2))
        self.head = nn.Linear(24, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.hidden(self.features(x)))
        return out


def template(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "branchy":
        return Branchy(channels=3)
    if name == "mixed":
        return Mixed()
    return backbone(name, width={"vgg": 0.12, "res": 0.08}.get(name[:3], 0.5))


def image_shape(name: str) -> tuple[int, int, int]:
    return (8, 8, 3) if name == "branchy" else (32, 32, 3)


def inputs(name: str, batch: int) -> torch.Tensor:
    height, width, channels = image_shape(name)
    draw = torch.Generator().manual_seed(batch)
    return torch.randn(batch, channels, height, width, generator=draw)


def answers(learner: grown.Learner, name: str) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        return {
            f"{task}/{batch}": learner.extract(task)(inputs(name, batch)) for task in learner.tasks for batch in BATCHES
        }


def learn_five(name: str) -> tuple[grown.Learner, list[dict[str, torch.Tensor]]]:
    """Five tasks with structure thrown about; the third and fifth expand. What each task answered, after each task."""
    config = quick(seed_size=0.5, max_size=4.0, task_size=1.0, step_size=0.4, growth="open", holdout=0.3)
    learner = grown.Learner(template(name), config)
    history = []
    for number in range(TASKS):
        stage = learner.open(
            make_task(f"t{number}", classes=2 + number % 3, shape=image_shape(name), each=8, seed=number)
        )
        shake(stage, seed=10 * number)
        if number in (2, 4):
            assert stage.expand()
            shake(stage, seed=10 * number + 1)
        settled = stage.settle()
        report = stage.commit(settled)
        assert report.grew == (number in (0, 2, 4))
        if number:
            assert report.new_kernels["released"] > 0
        with torch.inference_mode():
            x = inputs(name, 64)
            assert torch.equal(settled.network(x), learner.extract(report.name)(x))
        history.append(answers(learner, name))
    return learner, history


@pytest.fixture(scope="module")
def learned() -> dict[str, tuple[grown.Learner, list[dict[str, torch.Tensor]]]]:
    torch.set_num_threads(1)
    return {name: learn_five(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_old_tasks_answer_bit_for_bit_as_before(name: str, learned: dict) -> None:
    learner, history = learned[name]
    for number, then in enumerate(history):
        for later in history[number:]:
            for key, logits in then.items():
                assert torch.equal(logits, later[key]), (name, key)
    for layer, bank in learner.banks.items():
        last = learner.records[f"t{TASKS - 1}"]
        rows, columns = bank.view(learner.widths, last.widths)
        earlier = bank.owner[rows][:, columns]
        pickable = (earlier > 0) & (earlier < last.number)
        if pickable.sum() > 8:
            assert bool((pickable & ~last.active[layer]).any()), f"{layer}: nothing was left unpicked"
            assert bool((pickable & last.active[layer]).any()), f"{layer}: nothing was picked"


SCRIPT = """
import json, sys, numpy as np, torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)
import grown
from test_exact_memory import answers
for name, path in json.loads(sys.argv[2]).items():
    learner = grown.load(path)
    np.savez(path + ".npz", **{k.replace("/", "|"): v.numpy() for k, v in answers(learner, name).items()})
"""


def test_another_process_gives_the_same_bits(learned: dict, tmp_path: Path) -> None:
    paths = {}
    for name, (learner, _) in learned.items():
        paths[name] = str(tmp_path / f"{name}.safetensors")
        learner.save(paths[name])
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", SCRIPT, here, json.dumps(paths)], check=True)
    for name, (_, history) in learned.items():
        with np.load(paths[name] + ".npz") as found:
            assert set(found) == {key.replace("/", "|") for key in history[-1]}
            for key, logits in history[-1].items():
                assert np.array_equal(found[key.replace("/", "|")], logits.numpy()), (name, key)


PLAIN = """
import sys, torch
torch.set_num_threads(1)
network = torch.load(sys.argv[1], weights_only=False)
assert not any(name.split(".")[0] == "grown" for name in sys.modules)
assert not any("grown" in type(part).__module__ for part in network.modules())
torch.save(network(torch.load(sys.argv[2])), sys.argv[3])
"""


def test_an_extracted_network_is_plain_and_loads_without_the_library(learned: dict, tmp_path: Path) -> None:
    for name in ("branchy", "resnet18"):
        learner, history = learned[name]
        network = learner.extract("t2")
        assert all(type(part).__module__.split(".")[0] == "torch" or part is network for part in network.modules())
        paths = [str(tmp_path / f"{name}.{kind}") for kind in ("net", "in", "out")]
        torch.save(network, paths[0])
        torch.save(inputs(name, 64), paths[1])
        subprocess.run([sys.executable, "-c", PLAIN, *paths], check=True)
        assert torch.equal(torch.load(paths[2]), history[-1]["t2/64"])


def test_extracted_networks_are_physically_narrow(learned: dict) -> None:
    for learner, _ in learned.values():
        first = sum(p.numel() for p in learner.extract("t0").parameters())
        whole = sum(bank.weight.numel() for bank in learner.banks.values())
        assert first < whole


@pytest.mark.parametrize("name", ["convnet", "resnet18", "mixed", "lenet"])
def test_a_channel_without_kernels_is_cut_where_that_is_exact(name: str) -> None:
    learner = grown.Learner(template(name), quick(seed_size=0.5, growth="open"))
    learner.learn(make_task("t0", shape=image_shape(name), each=8))
    stage = learner.open(make_task("t1", shape=image_shape(name), each=8))
    first = learner.graph.banked()[0].name
    group = learner.channels.groups[learner.channels.output[first].groups[0]]
    rows = group.quantum
    feeding = [bank.name for bank in learner.banks.values() if group.index in bank.rows.groups and bank.columns]
    with torch.no_grad():
        for layer in stage.network.masked().values():
            if layer.scores is not None:
                layer.scores.fill_(1.0)
        for producer in feeding:
            stage.network.layer(producer).scores[:rows] = -1.0
    settled = stage.settle()
    out = settled.network.get_submodule(first).out_channels
    exact = group.silent and not group.mixed
    assert out == learner.widths[group.index] - (rows if exact else 0)
    assert exact == (name != "lenet")  # local response norm mixes neighbours
    stage.network.eval()
    with torch.no_grad():
        x = inputs(name, 8)
        assert torch.allclose(stage.network(x), settled.network(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_network_in_training_agrees_with_the_extracted_one(name: str) -> None:
    config = quick(seed_size=0.5, max_size=4.0, task_size=1.0, step_size=0.4, growth="open", holdout=0.3)
    learner = grown.Learner(template(name), config)
    for number in range(2):
        stage = learner.open(make_task(f"t{number}", shape=image_shape(name), each=8))
        shake(stage, seed=number)
        if number:
            stage.expand()
            shake(stage, seed=5)
        settled = stage.settle()
        stage.network.eval()
        with torch.no_grad():
            x = inputs(name, 8)
            wide, narrow = stage.network(x), settled.network(x)
        assert torch.allclose(wide, narrow, rtol=1e-4, atol=1e-4), float((wide - narrow).abs().max())
        stage.commit(settled)
