"""What runs as one kernel on a GPU: found in every network, computes the same, and leaves the network as it was.

The kernels themselves are imitated here by plain operations; tests/test_fused.py holds them to those.
"""

from __future__ import annotations

import copy
import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.methods.plain import PlainTraining
from grown.models import backbone
from grown.nn import fusing, pooled
from grown.nn.fusing import Behind, Part
from grown.train import fuse
from helpers import make_task, quick


class Imitated:
    """Stands for the fused kernels, and counts what it was asked for."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def norm_relu(self, x: Tensor, norm: nn.BatchNorm2d, added: Tensor | None, *, relu: bool) -> Tensor:
        self.calls[("norm" if added is None else "norm and add") if relu else "norm alone"] += 1
        y = norm(x)
        y = y if added is None else y + added
        return F.relu(y) if relu else y

    def max_pool(self, x: Tensor, *window: tuple[int, int]) -> Tensor:
        self.calls["pool"] += 1
        return F.max_pool2d(x, *window)

    def lrn(self, x: Tensor, *of: float) -> Tensor:
        self.calls["lrn"] += 1
        return F.local_response_norm(x, *of)  # type: ignore[arg-type]

    def ordered_lrn(self, x: Tensor, counted: Tensor, order: Tensor, *of: float) -> Tensor:
        self.calls["lrn"] += 1
        return fusing._ordered_lrn(x, counted, order, *of)  # type: ignore[arg-type]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Imitated:
    imitated = Imitated()
    monkeypatch.setattr(fusing, "_kernels", lambda x: imitated if x.ndim == 4 else None)
    monkeypatch.setattr(fuse, "fused", lambda: imitated)
    return imitated


def gradients(network: nn.Module, x: Tensor) -> list[Tensor]:
    """What a step of training sees: logits, gradients, running statistics."""
    out = network(x)
    out.square().mean().backward()
    own = [value for value in network.buffers() if value.is_floating_point()]
    return [out.detach(), *(p.grad for p in network.parameters() if p.grad is not None), *own]


NETWORKS = {
    "resnet18": {"norm": 9, "norm and add": 8, "norm alone": 3, "pool": 1},
    "resnet9": {"norm": 8, "pool": 4},
    "vgg16-bn-pool": {"norm": 13, "pool": 5},
    "lenet": {"pool": 2, "lrn": 2},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_plain_network_runs_fused_and_gets_its_program_back(name: str, kernels: Imitated) -> None:
    learner = grown.Learner(backbone(name, width=0.125), quick(), input_shape=(3, 32, 32))
    start = PlainTraining(learner.graph, learner.gains, quick()).fresh(make_task("t"), 0).train().requires_grad_(True)
    plain, fused = copy.deepcopy(start), copy.deepcopy(start)
    x = torch.randn(4, 3, 32, 32)
    expected, code = gradients(plain, x), str(fused.code)
    assert not kernels.calls
    fusion = fuse.Fusion(fused)
    assert list(fused.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(expected, gradients(fused, x), strict=True))
    assert kernels.calls == NETWORKS[name]
    assert torch.equal(fused.eval()(x), plain.eval()(x))
    assert kernels.calls == NETWORKS[name]  # only while it trains
    fusion.undo()
    assert str(fused.code) == code


@pytest.mark.parametrize("name", NETWORKS)
def test_a_growing_network_runs_fused(name: str, kernels: Imitated, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = grown.Learner(backbone(name, width=0.125), quick(), input_shape=(3, 32, 32))
    network = learner.open(make_task("t", shape=(32, 32, 3))).network.train()
    x = torch.randn(4, 3, 32, 32)
    fused = gradients(copy.deepcopy(network), x)
    assert kernels.calls == NETWORKS[name]
    monkeypatch.setattr(fusing, "_kernels", lambda _x: None)
    monkeypatch.setattr(fusing, "_banded", lambda _x: None)
    assert all(torch.equal(one, other) for one, other in zip(gradients(network, x), fused, strict=True))
    assert kernels.calls == NETWORKS[name]


def test_which_norms_run_with_what_is_behind_them() -> None:
    ends = (Part("x", "input", ()), Part("other", "conv", ("x",)), Part("norm", "norm", ("x",)))
    later = (Part("after", "conv", ("x",)),)
    add, relu = Part("add", "add", ("norm", "other")), Part("relu", "relu", ("add",))
    assert fusing.find([*ends, Part("relu", "relu", ("norm",))]) == {"norm": Behind("relu")}
    assert fusing.find([*ends, add, relu]) == {"norm": Behind("relu", "add", "other")}
    through = Part("same", "identity", ("other",))
    found = fusing.find([*ends, through, Part("add", "add", ("same", "norm")), relu])
    assert found == {"norm": Behind("relu", "add", "other")}
    alone = [
        [*ends, Part("relu", "relu", ("norm",)), Part("more", "conv", ("norm",))],  # somebody else reads the norm
        [*ends, add, relu, Part("more", "conv", ("add",))],  # or the sum
        [*ends, *later, Part("add", "add", ("norm", "after")), relu],  # what is added comes later
        [*ends, Part("add", "add", ("norm", "norm")), relu],
        [*ends, add],
        [*ends],
    ]
    assert all(fusing.find(parts) == {"norm": Behind()} for parts in alone)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), nn.MaxPool2d((2, 3), dilation=2)])
@pytest.mark.parametrize("shape", [(3, 5, 8, 9), (2, 1, 7, 7), (4, 6, 5, 5)])
@pytest.mark.parametrize("laid", [torch.contiguous_format, torch.channels_last])
def test_a_cpu_pools_sooner_to_the_bit(
    pool: nn.Module, shape: tuple[int, ...], laid: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, ties and what is not a number among them, wherever they lie in memory."""
    torch.manual_seed(0)
    x = torch.randn(shape).relu()
    x[0, 0, 3, 3] = math.nan
    x = x.contiguous(memory_format=laid)
    slope, found, taken = torch.randn_like(pool(x)), [], []
    monkeypatch.setattr(pooled, "max_pool", lambda *given, was=pooled.max_pool: taken.append(given) or was(*given))
    for training in (False, True):
        own = x.clone().requires_grad_()
        y = fusing.max_pool(own, pool.train(training))
        y.backward(slope)
        assert len(taken) == training  # an evaluation is PyTorch's own
        assert torch.equal(fusing.max_pool(x, pool).nan_to_num(9), y.detach().nan_to_num(9))
        taken.clear()
        found.append((y.detach().nan_to_num(9), own.grad))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert y.stride() == torch.empty(y.shape).stride()  # as a strided convolution behind it wants them


@pytest.mark.parametrize(
    ("pool", "side", "taken"),
    [
        (nn.MaxPool2d(2), 9, True),
        (nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0)), 8, True),
        (nn.AdaptiveMaxPool2d(1), 8, True),
        (nn.AdaptiveMaxPool2d(1), 9, False),  # a window of 81
        (nn.AdaptiveMaxPool2d(2), 8, False),
        (nn.MaxPool2d(2, dilation=2), 8, False),
        (nn.MaxPool2d(3, ceil_mode=True), 8, False),
        (nn.MaxPool2d(9), 18, False),
    ],
)
def test_pools_that_one_kernel_cannot_do_stay_as_they_are(
    pool: nn.Module, side: int, taken: bool, kernels: Imitated
) -> None:
    x = torch.randn(2, 3, side, side)
    assert torch.equal(fusing.max_pool(x, pool), pool(x))
    assert kernels.calls["pool"] == taken


def test_a_local_response_norm_with_gates_runs_fused_only_while_it_trains(kernels: Imitated) -> None:
    x, gate, norm = torch.randn(2, 9, 4, 4), torch.arange(9.0) % 3 > 0, nn.LocalResponseNorm(4, alpha=0.5)
    trained = fusing.lrn(x, norm, gate.float())
    assert kernels.calls == {"lrn": 1}
    assert torch.equal(fusing.lrn(x, norm.eval(), gate.float()), trained)
    assert kernels.calls == {"lrn": 1}
