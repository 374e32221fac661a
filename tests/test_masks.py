"""Masks: hard forward, straight-through backward; Eq. 4, Eq. 6 and Proposition 1."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import grown
from grown.growth import budget
from grown.nn import fusing, masks
from helpers import Branchy, make_task, quick, shake


def test_masked_kernels_equal_plain_autograd() -> None:
    draw = torch.Generator().manual_seed(0)
    frozen_at = torch.rand(4, 3, generator=draw) < 0.5
    frozen = torch.randn(4, 3, 3, 3, generator=draw) * frozen_at[..., None, None]
    weight = (torch.randn(4, 3, 3, 3, generator=draw) * ~frozen_at[..., None, None]).requires_grad_()
    scores = torch.randn(4, 3, generator=draw).requires_grad_()
    x = torch.randn(2, 3, 5, 5, generator=draw)
    fast = masks.masked_kernels(frozen, weight, masks.hard_mask(scores), (~frozen_at).float())
    F.conv2d(x, fast).square().sum().backward()
    got = weight.grad.clone(), scores.grad.clone()
    weight.grad = scores.grad = None
    hard = (scores > 0).float() + (scores - scores.detach())  # straight-through, the usual way to write it
    slow = (frozen + weight * ~frozen_at[..., None, None]) * hard[..., None, None]
    assert torch.equal(fast, slow)
    F.conv2d(x, slow).square().sum().backward()
    assert torch.allclose(got[0], weight.grad, atol=1e-4)
    assert torch.allclose(got[1], scores.grad, atol=1e-3)
    assert bool((got[0][frozen_at] == 0).all())


def test_corrected_eq_6_keeps_high_scores_on() -> None:
    """As printed, p < 0.5 without noise, whatever the score."""
    scores = torch.tensor([-3.0, -0.1, 0.1, 3.0])
    quiet = masks.Noise(1.0, 0.0)
    assert masks.gumbel_mask(scores, quiet, training=False).tolist() == [0, 0, 1, 1]
    printed = torch.sigmoid(torch.sigmoid(scores).log())
    assert bool((printed < 0.5).all())


def test_gumbel_noise_follows_the_scores_and_anneals() -> None:
    noise = masks.Noise(1.0, 1.0, torch.Generator().manual_seed(0))
    scores = torch.full((20_000,), 1.0)
    on = masks.gumbel_mask(scores, noise, training=True).mean()
    assert float(on) == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item(), abs=0.02)
    assert float(masks.gumbel_mask(scores, noise, training=False).mean()) == 1.0
    noise.scale = 0.0
    assert float(masks.gumbel_mask(scores, noise, training=True).mean()) == 1.0
    stage = grown.Learner(Branchy(), quick(mask="gumbel")).open(make_task("t"))
    settings = stage.network.settings.noise
    stage.anneal(0.0)
    start = (settings.temperature, settings.scale)
    stage.anneal(1.0)
    assert (settings.temperature, settings.scale) < start
    assert settings.scale == 0.0


def test_the_soft_form_scales_what_was_not_picked() -> None:
    scores = torch.tensor([[-1.0, 0.0, 1.0]], requires_grad=True)
    frozen = torch.tensor([[True, True, True]])
    mask = masks.soften(masks.hard_mask(scores), scores, frozen)
    assert mask.tolist() == [[0.0, 0.25, 1.0]]
    mask.sum().backward()
    assert scores.grad.tolist() == [[1.0, 1.0, 1.0]]


def test_sparse_growth_with_an_open_attentive_mask_is_conventional_growth() -> None:
    """Eq. 4: with m_a = 1, loss and gradients of Eq. 3 equal those of Eq. 2."""
    task = make_task("t")
    found = {}
    for sparse in (True, False):
        torch.manual_seed(0)
        learner = grown.Learner(Branchy(), quick(sparse=sparse, growth="open", growth_weight=0.5))
        stage = learner.open(task)
        stage.network.eval()  # dropout apart
        x, y = stage.normalise(stage.fit.images), stage.fit.labels
        loss = F.cross_entropy(stage.network(x), y) + stage.penalty()
        loss.backward()
        layers = stage.network.masked()
        found[sparse] = (
            loss.item(),
            [layer.weight.grad for layer in layers.values()],
            [scores.grad for scores in stage.network.gates.values()],
        )
        assert all((layer.scores is not None) == (sparse and layer.weight.shape[1] > 1) for layer in layers.values())
    assert found[True][0] == found[False][0]
    for index in (1, 2):
        assert found[True][index]
        for one, other in zip(found[True][index], found[False][index], strict=True):
            assert torch.equal(one, other)
            assert bool(one.abs().sum() > 0)


def test_a_kernel_alone_in_its_row_before_a_batch_norm_has_no_score() -> None:
    """The norm undoes what a row is multiplied by, so its score's gradient would be all but nothing."""
    stage = grown.Learner(grown.models.convnet(), quick()).open(make_task("t"))
    first, *others = stage.network.masked().values()
    assert first.scores is None
    assert all(layer.scores is not None for layer in others)
    norm = stage.network.layer(next(node.name for node in stage.learner.graph.norms()))
    slopes = []
    for behind in (norm, nn.Identity()):
        mask = torch.ones(first.weight.shape[:2], requires_grad=True)
        kernels = first.weight.detach() * mask[..., None, None]
        out = behind(F.conv2d(stage.normalise(stage.fit.images), kernels, padding=1))
        F.relu(out).square().mean().backward()
        slopes.append(float(mask.grad.abs().max()))
    assert slopes[0] < 1e-3 * slopes[1]
    by_lenet = grown.Learner(grown.models.lenet(channels=1, image=8), quick(), input_shape=(1, 8, 8))
    bare = next(iter(by_lenet.open(make_task("t")).network.masked().values()))
    assert bare.scores is not None  # nothing undoes it there
    rgb = grown.Learner(grown.models.convnet(channels=3), quick(), input_shape=(3, 8, 8))
    several = next(iter(rgb.open(make_task("t", shape=(8, 8, 3))).network.masked().values()))
    assert several.scores is not None
    shared = grown.Learner(Shared(), quick(seed_size=1.0), input_shape=(1, 8, 8)).open(make_task("t")).network
    assert next(iter(shared.masked().values())).scores is not None  # the other branch sees the scale


class Shared(nn.Module):
    """A grey image's convolution that a batch norm reads, and an addition too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(F.relu(x + self.norm(x)).mean((2, 3)))


def test_proposition_1_by_exhaustive_search() -> None:
    """Over all masks, with the best weights for each, sparse growth's optimum is no worse than conventional growth's.

    Two channels of three kernels each feed one output; ridge regression gives the best weights exactly.
    """
    draw = torch.Generator().manual_seed(1)
    channels, kernels, price = 2, 3, 0.05
    x = torch.randn(40, channels * kernels, generator=draw, dtype=torch.float64)
    y = x @ torch.tensor([2.0, 0.0, 0.0, 0.3, 0.0, -0.1], dtype=torch.float64)
    y += 0.1 * torch.randn(40, generator=draw, dtype=torch.float64)

    def best_loss(on: torch.Tensor) -> float:
        """The least of squared error + ridge over the weights of the kernels that are on."""
        masked = x * on
        gram = masked.T @ masked + 1e-1 * torch.eye(channels * kernels, dtype=torch.float64)
        weights = torch.linalg.solve(gram, masked.T @ y) * on
        return float((masked @ weights - y).square().sum() + 1e-1 * weights.square().sum() + price * on.sum())

    def least(attentive: list[tuple[int, ...]]) -> float:
        losses = []
        for gates in itertools.product((0, 1), repeat=channels):
            for chosen in attentive:
                on = torch.tensor(gates).repeat_interleave(kernels) * torch.tensor(chosen)
                losses.append(best_loss(on.double()) + 0.5 * sum(gates))
        return min(losses)

    every = list(itertools.product((0, 1), repeat=channels * kernels))
    sparse, conventional = least(every), least([(1,) * (channels * kernels)])
    assert sparse < conventional  # strictly, here: some kernels are not worth their price


def test_growth_penalty_rises_with_what_is_open() -> None:
    learner = grown.Learner(Branchy(), quick(growth="slim"))
    stage = learner.open(make_task("t"))
    assert float(stage.penalty().detach()) == 0.0
    with torch.no_grad():
        for scores in stage.network.gates.values():
            scores[0] = 1.0
    some = float(stage.penalty().detach())
    with torch.no_grad():
        for scores in stage.network.gates.values():
            scores.fill_(1.0)
    assert 0.0 < some < float(stage.penalty().detach())


def test_expected_l0_is_weighted_by_parameters() -> None:
    learner = grown.Learner(Branchy(), quick(growth="open"))
    stage = learner.open(make_task("t"))
    costs = budget.channel_costs(learner.channels, learner.banks, stage.network.settled)
    penalty = stage.penalty()
    penalty.backward()
    grads = {int(name): float(scores.grad[0]) for name, scores in stage.network.gates.items()}
    first, *others = grads
    for other in others:
        assert grads[other] / grads[first] == pytest.approx(costs[other] / costs[first], rel=1e-4)


def test_the_growth_penalty_is_the_same_group_by_group_and_at_once() -> None:
    learner = grown.Learner(Branchy(), quick(growth="open"))
    network = learner.open(make_task("t")).network
    costs = budget.channel_costs(learner.channels, learner.banks, network.settled)
    prices = budget.prices(network, costs, 1000.0)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for scores in network.gates.values():
            scores.uniform_(-1, 1, generator=draw)
    scores = network.gate_scores().detach()
    shares = torch.sigmoid(scores).requires_grad_()
    found = []
    for way in (budget._by_group(network, prices, shares), budget._at_once(prices, shares)):
        found.append([way.detach(), *torch.autograd.grad(way, shares)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-5)
    costly = [costs[int(name)] / 1000 for name, mine in network.gates.items() for _ in mine]
    open_, expected = (
        sum(price * share for price, share in zip(costly, values.tolist(), strict=True))
        for values in (scores > 0, torch.sigmoid(scores))
    )
    assert len(network.gates) > 1
    assert float(found[0][0]) == pytest.approx(expected, rel=1e-5)
    assert float(budget.growth_penalty(network, prices, 0.3).detach()) == pytest.approx(
        0.3 * open_ * expected, rel=1e-5
    )


def test_the_density_penalty_reaches_its_target() -> None:
    task = make_task("t", each=24)
    recipe = grown.Recipe(epochs=8, batch=16, score_rate=0.05)
    dense = grown.Learner(Branchy(), quick(recipe=recipe, seed_size=0.5))
    thin = grown.Learner(Branchy(), quick(recipe=recipe, seed_size=0.5, density=0.3, density_weight=20.0))
    owned = [learner.learn(task).new_kernels["grown"] for learner in (dense, thin)]
    assert owned[1] < 0.7 * owned[0]


def test_lrn_among_open_channels_is_lrn_without_the_closed_ones() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 4, 4, generator=draw)
    gate = torch.tensor([1.0, 1, 0, 1, 0, 0, 1, 1, 0])
    is_open = gate > 0
    norm = nn.LocalResponseNorm(4, alpha=0.5, beta=0.75, k=1.0)
    assert torch.allclose(fusing.lrn(x, norm, gate)[:, is_open], norm(x[:, is_open]), atol=1e-6)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", ["hard", "gumbel"])
def test_a_stage_without_noise_agrees_with_its_plain_network(kind: str, soft: bool) -> None:
    learner = grown.Learner(Branchy(), quick(mask=kind, soft_select=soft, growth="open"))
    for number in range(2):
        stage = learner.open(make_task(f"t{number}"))
        shake(stage, seed=number)
        settled = stage.settle()
        stage.network.eval()
        x = stage.normalise(stage.held_out.images)
        with torch.no_grad():
            assert torch.allclose(stage.network(x), settled.network(x), atol=1e-4)
        stage.commit(settled)
