"""Local response norm as it trains on a CPU: PyTorch's, in every value and gradient, and gone when training is over."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import grown
from grown.data.normalisation import measure
from grown.methods.plain import PlainTraining
from grown.models import backbone
from grown.nn import banded, fusing
from grown.train.batches import Batches
from grown.train.loop import fit
from grown.train.steps import Work
from helpers import make_task, quick


def near(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).norm() <= 1e-6 * expected.norm().clamp_min(1e-12)


def by_both(x: Tensor, norm: nn.Module, gate: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> list[list[Tensor]]:
    """Values and gradients of the plain way and of this one."""
    slope, found = torch.randn_like(x), []
    for way in ("plain", "banded"):
        own = x.clone().requires_grad_()
        opening = gate.clone().requires_grad_() if gate is not None else None
        with monkeypatch.context() as patch:
            if way == "plain":
                patch.setattr(fusing, "_banded", lambda _: None)
            y = fusing.lrn(own, norm, opening)
        y.backward(slope)
        assert own.grad is not None
        found.append([y.detach(), own.grad, *([opening.grad] if opening is not None else [])])
    assert not torch.equal(found[0][0], found[1][0]), "both ways are the same code"
    return found


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("beta", [0.75, 0.5, 1.3])
@pytest.mark.parametrize("size", [9, 4, 1])
@pytest.mark.parametrize("shape", [(3, 20, 9, 7), (2, 3, 4, 4)])
def test_every_value_and_gradient_is_pytorchs(
    shape: tuple[int, ...], size: int, beta: float, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In double precision, with a large alpha, so that the neighbours count."""
    torch.manual_seed(0)
    norm = nn.LocalResponseNorm(size, alpha=2.0, beta=beta, k=1.5).train()
    gate = (torch.arange(shape[1]) % 3 > 0).double() if gated else None
    x = torch.randn(shape, dtype=torch.float64)
    for one, other in zip(*by_both(x, norm, gate, monkeypatch), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
    x = x.float().contiguous(memory_format=torch.channels_last)  # and what lies otherwise in memory
    for one, other in zip(*by_both(x, norm, gate.float() if gate is not None else None, monkeypatch), strict=True):
        near(other, one)


def test_what_it_is_not_made_for_stays_pytorchs() -> None:
    norm = nn.LocalResponseNorm(5, alpha=0.5).train()
    for shape in ((2, 6), (2, 6, 3), (1, banded.MOST + 1, 2, 2)):
        x = torch.randn(shape)
        if len(shape) > 2:
            assert torch.equal(fusing.lrn(x, norm), norm(x))
        assert fusing._banded(x) is None
    x = torch.randn(1, banded.MOST, 2, 2)
    assert fusing._banded(x) is banded
    assert torch.equal(fusing.lrn(x, norm.eval()), norm(x))  # an evaluation is what is extracted, to the last bit


def test_a_network_trains_with_it_and_gets_its_program_back() -> None:
    """The same training with and without the faster code."""
    task = make_task("t", each=8, shape=(16, 16, 3))
    config = quick(recipe=grown.Recipe(epochs=1, batch=16))
    learner = grown.Learner(backbone("lenet", width=0.2, image=16), config, input_shape=(3, 16, 16))
    start = PlainTraining(learner.graph, learner.gains, config).fresh(task, 0).train().requires_grad_(True)
    assert sum(isinstance(module, nn.LocalResponseNorm) for module in start.modules()) == 2
    plain, trained = copy.deepcopy(start), copy.deepcopy(start)
    seen: list[str] = []

    def works(network: nn.Module) -> Work:
        batches = Batches(task.train, measure(task.train), config.recipe, "cpu", 0)
        groups = [{"name": "weights", "params": list(network.parameters())}]
        return Work(network, groups, batches, config.recipe, after_epoch=lambda _: seen.append(str(network.code)))

    fit(works(trained))
    assert "grown_nn_fusing_lrn" in seen[0]
    assert str(trained.code) == str(plain.code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusing, "_banded", lambda _: None)
        fit(works(plain))
    for one, other, before in zip(plain.parameters(), trained.parameters(), start.parameters(), strict=True):
        assert not torch.equal(one, before)
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
