"""Grow: gates by continuous sparsification beside hand-computed ones, a frozen past that is all in use, budgets."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import grown
from grown.config import Config, Recipe
from grown.errors import ConfigError, FileError
from grown.growth import budget
from grown.io import container
from grown.methods import method
from grown.methods.grow import Grow
from grown.methods.grow.stage import GrowStage
from grown.methods.grown.record import kept_kernels
from grown.methods.grown.removal import remove
from grown.methods.verify import verify
from grown.train.batches import Batches
from grown.train.loop import fit
from grown.train.steps import PlainSteps, Work
from helpers import Branchy, goes_on_from_its_file, make_task, quick
from test_loop import Imitated

SIZES = {"seed_size": 0.5, "start_size": 0.2, "task_size": 0.3, "max_size": 1.5}


def made(**changes: object) -> Grow:
    torch.manual_seed(0)
    learner: Grow = method("grow")(grown.models.convnet(width=0.5), quick(**{**SIZES, **changes}))
    return learner


def opened(**changes: object) -> GrowStage:
    learner = made(**changes)
    stage = learner.open(make_task("t0"))
    assert isinstance(stage, GrowStage)
    return stage


def tasks(count: int) -> list[grown.Task]:
    return [make_task(f"t{number}", classes=2 + number, seed=number) for number in range(count)]


# --- gates --------------------------------------------------------------------------------------------------------


def test_a_gate_opens_by_chance_with_a_slope_that_rises_with_its_use() -> None:
    stage = opened(grow_beta=100.0)
    network = stage.network
    count = len(network.gate_scores())
    assert torch.equal(network.gate_scores(), torch.zeros(count))  # none is decided yet
    assert network.span == 2 * (len(stage.fit) // 16)
    start = torch.linspace(-0.05, 0.05, count)
    with torch.no_grad():
        for scores, mine in zip(network.gates.values(), network.by_group(start), strict=True):
            scores.copy_(mine)
        network.used.copy_(torch.linspace(0, 2 * network.span, count))
    for one, s in enumerate(start.tolist()):
        share = min(1.0, float(network.used[one]) / network.span)
        by_hand = 1 / (1 + math.exp(-(100.0**share) * s))
        assert float(network.openness()[one].detach()) == pytest.approx(by_hand, rel=1e-4)
    gates = network._drawn()
    assert set(gates.tolist()) <= {0.0, 1.0}
    gates.sum().backward()
    found = torch.cat([scores.grad for scores in network.gates.values()])
    p = network.openness().detach()  # of the next step: only a count of those that were drawn moved
    assert bool((found != 0).all())
    fresh = (network.used == 0).nonzero().flatten()
    assert torch.allclose(found[fresh], p[fresh] * (1 - p[fresh]), atol=1e-6)  # straight through, at beta 1


def test_draws_follow_their_probability_and_are_counted() -> None:
    torch.manual_seed(1)
    stage = opened(grow_beta=1.0)  # the slope stays
    network = stage.network
    start = torch.linspace(-2, 2, len(network.gate_scores()))
    with torch.no_grad():
        for scores, mine in zip(network.gates.values(), network.by_group(start), strict=True):
            scores.copy_(mine)
    seen = torch.stack([network._drawn().detach() for _ in range(2000)])
    assert torch.allclose(seen.mean(0), torch.sigmoid(start), atol=0.05)
    assert torch.equal(network.used, seen.sum(0))
    network.eval()
    assert torch.equal(network._drawn() > 0, start > 0)
    assert torch.equal(network.used, seen.sum(0))


def test_candidates_that_come_later_keep_the_counts_of_those_before() -> None:
    stage = opened()
    network = stage.network
    before = [len(scores) for scores in network.gates.values()]
    with torch.no_grad():
        network.used.copy_(torch.arange(1.0, 1 + sum(before)))
        next(iter(network.gates.values()))[0] = 1.0
    counts = [mine.tolist() for mine in network.by_group(network.used)]
    assert stage.expand()
    assert any(len(scores) > count for scores, count in zip(network.gates.values(), before, strict=False))
    for mine, scores, known in zip(network.by_group(network.used), network.gates.values(), counts, strict=False):
        assert mine.tolist() == known + [0.0] * (len(scores) - len(known))


def test_the_penalty_is_the_gap_to_the_budget_times_the_expected_size() -> None:
    stage = opened(grow_weight=0.7)
    learner, network = stage.learner, stage.network
    room = stage._cap() - budget.parameters(learner.banks, network.settled)
    with torch.no_grad():
        for scores in network.gates.values():
            scores.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    scores, prices = network.gate_scores().tolist(), stage._prices.tolist()
    expected = sum(price / (1 + math.exp(-s)) for s, price in zip(scores, prices, strict=True))
    penalty = stage.penalty()
    assert float(penalty.detach()) == pytest.approx(0.7 * (expected - 1) * expected, rel=1e-4)
    penalty.backward()
    p = torch.sigmoid(network.gate_scores().detach())
    slope = 0.7 * (expected - 1) * stage._prices * p * (1 - p)  # none through the gap
    found = torch.cat([scores.grad for scores in network.gates.values()])
    assert torch.allclose(found, slope, rtol=1e-3, atol=1e-9)
    # All that the budget pays for, open together, costs the budget: the prices are right on the whole.
    paid = budget.widths_with_candidates(learner.channels, learner.banks, network.settled, network.settled, room)
    assert paid is not None
    added = [(p - s) for p, s in zip(paid, network.settled, strict=True)]
    cost = budget.parameters(learner.banks, paid) - budget.parameters(learner.banks, network.settled)
    offered = [len(scores) for scores in network.gates.values()]
    assert offered == [2 * n for n in added if n]
    assert float(stage._prices.sum()) / 2 == pytest.approx(cost / room, rel=0.1)


@pytest.mark.parametrize("start", [-0.3, 0.3])
def test_the_penalty_draws_the_network_to_its_budget_from_both_sides(start: float) -> None:
    stage = opened(grow_weight=1.0)
    network = stage.network
    with torch.no_grad():
        for scores in network.gates.values():
            scores.fill_(start).add_(0.2 * torch.randn(len(scores), generator=torch.Generator().manual_seed(0)))
    optimizer = torch.optim.Adam(network.gates.values(), lr=0.01)
    for _ in range(400):
        network.opening()
        optimizer.zero_grad()
        stage.penalty().backward()
        optimizer.step()
    room = stage._cap() - budget.parameters(stage.learner.banks, network.settled)
    taken = stage._open_parameters() - budget.parameters(stage.learner.banks, network.settled)
    assert 0.75 < taken / room < 1.25


# --- whole tasks --------------------------------------------------------------------------------------------------


def test_all_that_is_there_is_used_and_all_that_is_new_is_dense() -> None:
    learner = made()
    for task in tasks(3):
        report = learner.learn(task)
        assert report.grew
        assert report.new_kernels["released"] == 0
        assert report.target is None
    for record in learner.records.values():
        for name, bank in learner.banks.items():
            owner = bank.owners(learner.widths, record.widths)
            usable = kept_kernels(record, bank) & (owner > 0) & (owner <= record.number)
            assert torch.equal(record.active[name], usable)
            mine = kept_kernels(record, bank)
            assert bool((owner[mine] > 0).all())  # no kernel between its channels is left out
    first, last = list(learner.records.values())[:: len(learner.records) - 1]
    assert sum(last.narrow()) > sum(first.narrow())


def test_budgets_are_shared_by_the_tasks_that_are_foreseen() -> None:
    learner, base = made(max_size=0.9, task_size=0.3), 0
    learner.foresee(tasks(4))
    sizes = []
    for task in tasks(4):
        learner.learn(task)
        base = learner.base_parameters
        sizes.append(budget.parameters(learner.banks, learner.widths) / base)
    assert sizes[0] <= 0.5
    for left, (before, after) in zip((3, 2, 1), pairwise(sizes), strict=True):
        assert before < after <= before + (0.9 - before) / left + 1e-9
    assert sizes[-1] > 0.8
    alone = made(max_size=0.9, task_size=0.3)  # nothing is foreseen: a task takes up to task_size, while there is room
    for task in tasks(4):
        alone.learn(task)
    assert budget.parameters(alone.banks, alone.widths) <= 0.9 * base
    assert [record.grew for record in alone.records.values()][:2] == [True, True]


def test_where_nothing_is_left_a_task_grows_no_more_and_is_still_learned() -> None:
    learner = made(seed_size=0.3, max_size=0.3)
    for task in tasks(2):
        report = learner.learn(task)
    assert not report.grew
    assert report.new_kernels == {"released": 0, "grown": 0}
    assert learner.network("t1")(torch.zeros(1, 1, 8, 8)).shape == (1, 3)


def test_settings_that_are_growns_alone_are_off() -> None:
    learner = made()
    learner.learn(tasks(1)[0])
    for config in (learner.config, grown.Config.from_json(learner.state().meta["config"])):
        assert (config.select, config.sparse, config.soft_select, config.mask) == (False, False, False, "hard")
    learner.configure(Config(mask="gumbel", start="related"))
    assert (learner.config.mask, learner.config.start, learner.config.select) == ("hard", "open", False)


@pytest.mark.parametrize(("kernel_format", "refit"), [("fp32", False), ("bf16", True)])
def test_a_file_goes_on_as_if_it_had_never_been_one(kernel_format: str, refit: bool, tmp_path: Path) -> None:
    learner = made(kernel_format=kernel_format, refit=refit)
    learner.foresee(tasks(3))
    report = goes_on_from_its_file(learner, tasks(3), tmp_path, foresee=True)
    assert [stage.name for stage in report.stages] == ["grow", "refit"][: 1 + refit]
    assert not any(name.endswith("/picked") for name in container.load(tmp_path / "2")[0])


def test_a_task_can_be_removed_and_what_it_freed_is_trained_again(tmp_path: Path) -> None:
    learner = made(max_size=0.9)
    for task in tasks(3):
        learner.learn(task)
    x = torch.randn(3, 1, 8, 8)
    known = {name: learner.network(name)(x) for name in ("t0", "t1")}
    freed = remove(learner, "t2").freed
    assert freed > 0
    report = learner.learn(make_task("t3", seed=3))
    assert 0 < report.new_kernels["released"] <= freed
    learner.save(tmp_path / "m")
    assert verify(tmp_path / "m").exact == ["t0", "t1", "t3"]
    assert all(torch.equal(grown.load(tmp_path / "m").network(name)(x), logits) for name, logits in known.items())


def test_picked_bits_do_not_go_with_it(tmp_path: Path) -> None:
    learner = made()
    learner.learn(tasks(1)[0])
    learner.save(tmp_path / "m")
    tensors, meta = container.load(tmp_path / "m")
    container.save(tmp_path / "m", {**tensors, "task/1/picked": torch.zeros(1, dtype=torch.uint8)}, meta)
    with pytest.raises(FileError, match="holds task/1/picked"):
        grown.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["lenet", "resnet18", "vgg16-bn"])
def test_it_works_on_the_librarys_backbones(name: str) -> None:
    template = grown.models.backbone(name, channels=1, width=0.08, image=32)
    learner = method("grow")(template, quick(recipe=Recipe(epochs=1, batch=16), seed_size=0.6, max_size=2.0))
    x, known = torch.randn(2, 1, 32, 32), {}
    for number in range(2):
        learner.learn(make_task(f"t{number}", shape=(32, 32, 1), each=6, seed=number))
        known[f"t{number}"] = learner.network(f"t{number}")(x)
        assert all(torch.equal(learner.network(task)(x), logits) for task, logits in known.items())


# --- the loop -----------------------------------------------------------------------------------------------------


def second(learner: Grow) -> tuple[GrowStage, Work]:
    """A second task, and its training."""
    stage = learner.open(make_task("t1", seed=1))
    assert isinstance(stage, GrowStage)
    batches = Batches(stage.fit, stage.normalise, stage.recipe, learner.config.device, 0)
    return stage, Work(stage.network, stage.parameter_groups(), batches, stage.recipe, penalty=stage.penalty)


STEPS = Recipe(epochs=1, batch=8, rate=0.01, precision="fp32", crop=1, flip=True)


def test_a_captured_step_computes_the_plain_update() -> None:
    learner, found = made(recipe=STEPS), []
    learner.learn(make_task("t0"))
    for kind in (PlainSteps, Imitated):
        stage, work = second(learner)
        torch.manual_seed(0)
        kind(work).epoch(1)
        found.append(stage.network.state_dict())
    assert any(bool(value.any()) for key, value in found[0].items() if key == "used")
    for key, value in found[0].items():
        assert torch.allclose(value.float(), found[1][key].float(), rtol=1e-3, atol=1e-5), key


@pytest.mark.gpu
def test_a_captured_step_on_a_gpu_draws_anew_each_time() -> None:
    learner = made(recipe=STEPS, device="cuda")
    learner.learn(make_task("t0"))
    stage, work = second(learner)
    fit(work)
    used = torch.cat([stage.network.used(name).cpu() for name in stage.network.gates])
    assert 0 < float(used.mean()) < work.batches.steps  # neither always the same nor never
    assert len(set(used.tolist())) > 2


@pytest.mark.parametrize(
    ("setting", "value"), [("grow_weight", -1.0), ("grow_beta", 0.5), ("grow_offer", 0.9), ("grow_offer", float("nan"))]
)
def test_settings_are_checked(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=setting):
        Config(**{setting: value})  # type: ignore[arg-type]


def test_it_grows_branches_together() -> None:
    learner = method("grow")(Branchy(), quick(seed_size=0.6, recipe=Recipe(epochs=1, batch=16)))
    for task in tasks(2):
        assert learner.learn(task).grew
