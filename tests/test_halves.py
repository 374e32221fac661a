"""Half-precision copies give the gradients that autocast gives, to the last bit."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.methods.masked import layers
from grown.methods.masked.layers import Kernels
from grown.methods.plain import PlainTraining
from grown.models import backbone
from grown.train import fuse
from grown.train.halves import Halves
from helpers import make_task, quick


def gradients(network: nn.Module, x: Tensor, halves: bool) -> dict[str, Tensor]:
    run = Halves(network) if halves else network
    with torch.autocast("cpu", torch.bfloat16):
        answers = run(x)
    F.cross_entropy(answers.float(), torch.arange(len(x)) % 2).backward()
    if isinstance(run, Halves):
        run.collect()
    return {name: value.grad for name, value in network.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("name", ["vgg16-bn-pool", "resnet18"])
def test_gradients_are_those_of_autocast(name: str) -> None:
    learner = grown.Learner(backbone(name, width=0.125), quick(), input_shape=(3, 32, 32))
    start = PlainTraining(learner.graph, learner.gains, quick()).fresh(make_task("t"), 0).train().requires_grad_(True)
    x = torch.randn(4, 3, 32, 32)
    expected, found = (gradients(copy.deepcopy(start), x, halves) for halves in (False, True))
    assert list(expected) == list(found)
    assert all(torch.equal(value, found[key]) and value.any() for key, value in expected.items())


def test_weights_are_read_anew_each_time_and_frozen_ones_stay() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(torch.bfloat16).float()
    network[0].weight.requires_grad_(False)
    halves = Halves(network)
    x = torch.randn(5, 3)
    with torch.no_grad():
        network[2].weight.mul_(2.0)
    with torch.autocast("cpu", torch.bfloat16):
        answers = halves(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(answers, network(x))
    answers.float().sum().backward()
    halves.collect()
    assert network[0].weight.grad is None
    assert network[2].weight.grad is not None
    assert network[2].weight.grad.dtype == torch.float32


def test_a_layer_of_another_kind_keeps_its_precision() -> None:
    class Threshold(nn.Linear):
        """Its weight decides, and must not be rounded."""

    network = nn.Sequential(Threshold(3, 4), nn.Linear(4, 2))
    with torch.autocast("cpu", torch.bfloat16):
        Halves(network)(torch.randn(5, 3)).float().sum().backward()
    assert network[0].weight.grad is not None  # its own, by autograd
    assert network[1].weight.grad is None  # until the copies' are collected


def test_a_layer_whose_kernels_are_made_has_no_copy() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    frozen = torch.full((4, 3), 0.5)
    layers.install(network, {"0.weight": Kernels(None, torch.ones(4, 3) > 0, frozen)})
    with torch.autocast("cpu", torch.bfloat16):
        Halves(network)(torch.randn(5, 3)).float().sum().backward()
    assert network[0].layer.weight.grad is not None  # its own: rounded once, where its kernels are made
    assert network[1].weight.grad is None


def test_a_weight_outside_the_loss_is_a_mistake() -> None:
    network = nn.Linear(3, 4)
    with pytest.raises(ValueError, match="takes no part"):
        Halves(nn.Sequential(network)).collect()


def test_the_fused_program_runs_on_copies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "fused", lambda: object())
    learner = grown.Learner(backbone("resnet18", width=0.125), quick(), input_shape=(3, 32, 32))
    network = PlainTraining(learner.graph, learner.gains, quick()).fresh(make_task("t"), 0).train().requires_grad_(True)
    with torch.no_grad():
        for value in network.parameters():
            value.copy_(value.bfloat16())
    x = torch.randn(4, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = copy.deepcopy(network)(x)
        fuse.Fusion(network)
        assert torch.equal(Halves(network)(x), expected)
