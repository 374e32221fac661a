"""GROWN's decisions: it grows where it must, not where it need not; its parts switch off; its caps hold."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grown
from grown.config import Config, Recipe
from grown.data.normalisation import measure
from grown.errors import ConfigError
from grown.growth import budget
from grown.models import convnet
from helpers import Branchy, make_task, quick, shake


def stream(count: int = 3, **details: Any) -> list[grown.Task]:
    return [make_task(f"t{number}", seed=number, **details) for number in range(count)]


def learn(
    config: Config, tasks: list[grown.Task], template: Any = None
) -> tuple[grown.Learner, list[grown.TaskReport]]:
    torch.manual_seed(0)
    learner = grown.Learner(template if template is not None else convnet(), config)
    return learner, [learner.learn(task) for task in tasks]


def test_a_target_that_reuse_meets_is_met_without_growth() -> None:
    _, reports = learn(quick(target=0.0), stream())
    assert [report.grew for report in reports] == [True, False, False]
    assert [len(report.stages) for report in reports] == [1, 1, 1]
    assert all(report.new_kernels["grown"] == 0 for report in reports[1:])


def test_a_target_that_reuse_misses_makes_it_expand_until_the_caps() -> None:
    config = quick(target=100.0, growth="open", expansions=2, recipe=Recipe(epochs=1, batch=16, rate=1e-3))
    learner, reports = learn(config, stream(noise=120.0))
    for report in reports[1:]:
        assert [stage.name for stage in report.stages] == ["reuse", "expand", "expand"]
        assert report.target == 100.0
        assert report.val < 100.0
    assert budget.parameters(learner.banks, learner.widths) <= config.max_size * learner.base_parameters


def test_a_lower_target_and_a_stronger_seed_grow_less() -> None:
    """The same stream and code: it does not grow where it need not."""
    tasks = grown.data.stream("digits")[:4]

    def added(seed_size: float, target: float) -> int:
        recipe = Recipe(epochs=8, batch=32)
        config = quick(recipe=recipe, seed_size=seed_size, target=target, growth="open", expansions=2)
        learner, reports = learn(config, tasks)
        names = list(learner.records)
        for report, before in zip(reports[1:], names, strict=False):
            assert report.grew == (learner.records[report.name].widths != learner.records[before].widths)
        after_first = budget.parameters(learner.banks, learner.records[names[0]].widths)
        return budget.parameters(learner.banks, learner.widths) - after_first

    weak = added(0.02, 93.0)
    assert weak > 0
    assert added(0.02, 50.0) < weak
    assert added(0.8, 93.0) < weak


def test_growth_that_gains_nothing_is_not_kept() -> None:
    config = quick(target=100.0, growth="open", recipe=Recipe(epochs=1, batch=16, rate=1e-6, score_rate=1e-6))
    learner, reports = learn(config, stream(2, noise=150.0))
    assert len(reports[1].stages) == 4
    best = max(stage.val for stage in reports[1].stages)
    assert reports[1].val == best
    if reports[1].stages[0].val == best:
        assert not reports[1].grew
        assert learner.records["t1"].widths == learner.records["t0"].widths


@pytest.mark.parametrize("growth", ["slim", "open"])
def test_slim_growth_starts_closed_and_open_growth_open(growth: str) -> None:
    stage = grown.Learner(convnet(), quick(growth=growth)).open(make_task("t"))
    opened = torch.cat(list(stage.network.open_candidates().values()))
    assert len(opened) > 0
    assert bool(opened.all()) == (growth == "open")
    assert bool(opened.any()) == (growth == "open")


def test_every_opening_and_closing_is_logged() -> None:
    events: list[dict[str, Any]] = []
    recipe = Recipe(epochs=6, batch=16, score_rate=0.05)
    torch.manual_seed(0)
    learner = grown.Learner(convnet(), quick(recipe=recipe, gate_start=0.01), observer=events.append)
    states: list[dict[int, torch.Tensor]] = []
    stage = learner.open(make_task("t", each=24))
    network = stage.network
    states.append(network.open_candidates())
    optimizer = torch.optim.Adam(stage.parameter_groups(), lr=0.02)
    for step in range(30):
        which = torch.arange(step, step + 16) % len(stage.fit)
        x, y = stage.normalise(stage.fit.images[which]), stage.fit.labels[which]
        loss = torch.nn.functional.cross_entropy(network(x), y) + stage.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        states.append(network.open_candidates())
    flips = network.gate_log.take()
    expected = sum(int((a[group] != b[group]).sum()) for a, b in itertools.pairwise(states[:-1]) for group in a)
    assert expected > 0
    assert sum(len(flip["opened"]) + len(flip["closed"]) for flip in flips) == expected
    assert network.gate_log.take() == []
    learner.learn(make_task("u", each=24))
    assert any(event["event"] == "gates" for event in events)


def test_a_channel_that_closes_keeps_its_weights_and_may_reopen() -> None:
    learner = grown.Learner(convnet(), quick(growth="open", step_size=0.1, task_size=1.0))
    learner.learn(make_task("s"))
    stage = learner.open(make_task("t"))
    assert stage.expand()
    shake(stage, seed=0)
    network = stage.network
    group, scores = next(iter(network.gates.items()))
    network.eval()
    x = stage.normalise(stage.held_out.images)
    with torch.no_grad():
        for layer in network.masked().values():
            if layer.scores is not None:
                layer.scores.fill_(1.0)
        scores.fill_(1.0)
        before = network(x)
        scores[0] = -1.0
        closed = network(x)
        assert not torch.equal(before, closed)
        scores[0] = 1.0
        assert torch.equal(network(x), before)
        scores[0] = -1.0
        kernels = {name: layer.kernels().clone() for name, layer in network.masked().items()}
        stage.settle()
        assert stage.expand()
    channel = network.settled[int(group)]
    for name, layer in network.masked().items():
        if int(group) in learner.banks[name].rows.groups:
            assert torch.equal(layer.kernels()[channel, : kernels[name].shape[1]], kernels[name][channel])


def test_a_closed_candidate_is_dropped_at_commit() -> None:
    learner = grown.Learner(convnet(), quick(growth="open"))
    stage = learner.open(make_task("t"))
    with torch.no_grad():
        for scores in stage.network.gates.values():
            scores.fill_(1.0)
            scores[::2] = -1.0
    opened = budget.open_widths(stage.network)
    stage.commit()
    assert all(w <= o for w, o in zip(learner.widths, opened, strict=True))
    assert learner.widths[1] < stage.network.widths[1]


ABLATION = {
    "grow-only": {"select": False, "sparse": False, "retrain": False},
    "+selective": {"select": True, "sparse": False, "retrain": False},
    "+sparse": {"select": True, "sparse": True, "retrain": False},
    "+retrain": {"select": True, "sparse": True, "retrain": True},
}


@pytest.mark.parametrize("setting", list(ABLATION))
def test_the_parts_switch_off_one_by_one(setting: str) -> None:
    parts = ABLATION[setting]
    config = quick(**parts, growth="open", expansions=1)
    learner = grown.Learner(convnet(), config)
    learner.open(make_task("t0"))
    shake(learner.stage, seed=0)
    learner.stage.commit()
    stage = learner.open(make_task("t1"))
    assert stage.expand()
    shake(stage, seed=1)
    report = stage.commit()
    record = learner.records["t1"]
    released = picked_off = own_off = 0
    for name, bank in learner.banks.items():
        rows, columns = bank.view(learner.widths, record.widths)
        owner = bank.owner[rows][:, columns]
        kept = torch.ones_like(owner, dtype=torch.bool)
        kept &= torch.cat([record.kept[g] for g in bank.rows.groups])[:, None]
        kept &= torch.cat([record.kept[g] for g in bank.columns.groups])
        picked_off += int(((owner == 1) & kept & ~record.active[name]).sum())
        own_off += int(((owner == 0) & kept).sum())
    released = report.new_kernels["released"]
    assert (picked_off > 0) == parts["select"]
    assert (released > 0) == parts["retrain"]
    assert (own_off > 0) == parts["sparse"]


def test_no_growth_at_all_leaves_the_seed_network() -> None:
    learner, reports = learn(quick(grow=False, target=100.0), stream(2))
    assert [len(report.stages) for report in reports] == [1, 1]
    assert learner.records["t1"].widths == learner.records["t0"].widths


def test_caps_hold_even_where_closed_channels_reopen() -> None:
    config = quick(growth="open", task_size=0.15, step_size=0.1, seed_size=0.2, max_size=0.4)
    learner = grown.Learner(convnet(), config)
    for number in range(4):
        stage = learner.open(make_task(f"t{number}"))
        for _ in range(3):
            with torch.no_grad():
                for scores in stage.network.gates.values():
                    scores.fill_(-1.0)
            stage.expand()
        with torch.no_grad():
            for scores in stage.network.gates.values():
                scores.fill_(1.0)
        before = budget.parameters(learner.banks, learner.widths)
        stage.commit()
        now = budget.parameters(learner.banks, learner.widths)
        cap = config.seed_size if number == 0 else min(config.max_size, before / learner.base_parameters + 0.15)
        assert now <= cap * learner.base_parameters
        assert learner.size().size_x <= cap


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10**6)), min_size=2, max_size=4))
def test_no_sequence_of_tasks_changes_an_earlier_answer(plan: list[tuple[int, int]]) -> None:
    learner = grown.Learner(Branchy(), quick(growth="open", max_size=6.0, task_size=2.0, step_size=0.5))
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    known: dict[str, torch.Tensor] = {}
    for number, (expansions, seed) in enumerate(plan):
        stage = learner.open(make_task(f"t{number}", each=6, seed=seed))
        for _ in range(expansions):
            stage.expand()
            shake(stage, seed=seed, steps=1)
        shake(stage, seed=seed + 1, steps=1)
        stage.commit()
        known[f"t{number}"] = learner.extract(f"t{number}")(x)
        for name, logits in known.items():
            assert torch.equal(learner.extract(name)(x), logits)


def test_growth_alone_records_a_curve() -> None:
    task = make_task("t", each=24)
    recipe = Recipe(epochs=5, batch=16, score_rate=0.05, watch=3)  # a curve has every epoch all the same
    curves = {}
    for sparse in (True, False):
        torch.manual_seed(0)
        curves[sparse] = grown.grow_alone(
            convnet(), task, quick(recipe=recipe, growth="open", refit=True), sparse=sparse
        )
        points = curves[sparse].points
        assert [point.epoch for point in points] == [1, 2, 3, 4, 5]
        assert all(0 <= point.accuracy <= 100 and np.isfinite(point.loss) and point.grow_ratio > 0 for point in points)
        assert all(point.grow_ratio <= 0.3 for point in points)
    assert curves[True].report.size.size_x < curves[False].report.size.size_x


def test_a_run_repeats_bit_for_bit() -> None:
    states = []
    template = Branchy()
    for _ in range(2):
        learner, _ = learn(quick(target="scratch", growth="open", seed=5), stream(2), template)
        states.append(learner.state())
        torch.rand(7)  # what else goes on in the process does not matter
    assert states[0].meta == states[1].meta
    assert all(torch.equal(states[0].tensors[name], tensor) for name, tensor in states[1].tensors.items())
    other, _ = learn(quick(target="scratch", growth="open", seed=6), stream(2), template)
    assert any(
        tensor.shape != states[0].tensors[name].shape or not torch.equal(states[0].tensors[name], tensor)
        for name, tensor in other.state().tensors.items()
    )


def test_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    learner = grown.Learner(Branchy(), quick())
    torch.manual_seed(3)
    learner.learn(make_task("t"))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("target", [0.0, 100.0])
def test_a_refit_learns_from_all_data_once_the_held_out_part_has_decided(target: float) -> None:
    recipe = Recipe(epochs=4, batch=16, rate=1e-3)
    config = quick(refit=True, decide=0.5, target=target, recipe=recipe, growth="open", expansions=1)
    torch.manual_seed(0)
    learner = grown.Learner(convnet(), config)
    for task in stream(3, noise=100.0):
        report = learner.learn(task)
        *deciding, last = report.stages
        assert last.name == "refit"
        assert last.val is None
        assert last.epochs == 4
        assert all(stage.epochs == 2 for stage in deciding)
        assert report.val == max(stage.val for stage in deciding if stage.val is not None)
        assert learner.normalisation(task.name) == measure(task.train)
        best = max(range(len(deciding)), key=lambda i: (deciding[i].val, -i))
        if task.name != "t0":
            assert report.grew <= (best > 0)
    assert learner.stage is None
    with pytest.raises(ConfigError, match="refit"):
        quick(decide=0.5)


def test_a_tasks_own_kernels_may_start_further_from_the_threshold() -> None:
    learner = grown.Learner(grown.models.convnet(), quick(score_start=0.05, new_start=0.3, max_size=3.0))
    stage = learner.open(make_task("t0"))
    shake(stage, seed=0)
    stage.commit()
    stage = learner.open(make_task("t1"))
    assert stage.expand()
    first, *others = stage.network.masked().values()
    assert first.scores is None  # of a grey image, before a batch norm
    for layer in others:
        assert layer.scores is not None
        assert bool(torch.isclose(layer.scores[layer.is_frozen], torch.tensor(0.05)).all())
        assert bool(torch.isclose(layer.scores[~layer.is_frozen], torch.tensor(0.3)).all())
        assert bool(layer.is_frozen.any())
        assert not bool(layer.is_frozen.all())
