"""The captured step's own bookkeeping, on the CPU: what a replay would repeat is run again instead."""

from __future__ import annotations

import pytest
import torch

import grown
from grown.config import Recipe
from grown.data.normalisation import measure
from grown.methods.plain import plain_groups
from grown.train import lanes
from grown.train.batches import Batches
from grown.train.captured import CapturedSteps
from grown.train.steps import Epoch, PlainSteps, Work
from helpers import make_task, quick, shake


class Imitated(CapturedSteps):
    """Where a GPU would replay a graph, this runs the same step again."""

    def _capture(self) -> object:  # type: ignore[override]
        class Again:
            replay = self._once

        return Again()


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_captured_step_computes_the_plain_update(growing: bool, optimizer: str) -> None:
    shape = (8, 8, 3)  # with one input channel a first-layer score has no gradient behind batch norm, only rounding
    task = make_task("t", shape=shape, each=32)
    recipe = Recipe(
        epochs=1, batch=8, rate=0.01, optimizer=optimizer, precision="fp32", crop=1, flip=True, cutout=2, cutmix=0.5
    )
    states, losses, flips = [], [], []
    for kind in (PlainSteps, Imitated):
        torch.manual_seed(0)
        learner = grown.Learner(grown.models.convnet(channels=3), quick(recipe=recipe, growth="open", gate_start=0.01))
        stage = learner.open(make_task("t0", shape=shape))
        shake(stage, seed=0)
        stage.commit()
        stage = learner.open(make_task("t1", shape=shape))
        if growing:
            assert stage.expand()
        batches = Batches(task.train, measure(task.train), recipe, "cpu", 0)
        penalty = stage.penalty if stage.has_penalty else None
        stage.network.train()
        start = {key: value.clone() for key, value in stage.network.state_dict().items()}
        steps = kind(Work(stage.network, stage.parameter_groups(), batches, recipe, penalty=penalty))
        losses.append(steps.epoch(1))
        steps.finish()
        flips.append(stage.network.gate_log.take())
        states.append(stage.network.state_dict())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for key, value in states[0].items():
        if value.is_floating_point():
            error = (states[1][key] - value).norm() / (value - start[key]).norm().clamp_min(1e-9)
            assert float(error) < 1e-2, key
    # A pass notes the gates before its update, a captured step after it: the last update is seen by one of them alone.
    if growing:
        assert len(flips[0]) > 0
        seen = [{(flip["group"], *flip["opened"], "|", *flip["closed"]) for flip in found} for found in flips]
        assert seen[0] <= seen[1]


def test_trainings_side_by_side_are_those_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different lengths, some shorter than what runs before a capture; fewer lanes than trainings."""
    monkeypatch.setattr(lanes, "CapturedSteps", Imitated)
    states: list[list[dict[str, torch.Tensor]]] = []
    epochs: list[list[tuple[int, int]]] = []
    for together in (False, True):
        works: list[Work] = []
        told: list[tuple[int, int]] = []
        for number, (each, length) in enumerate([(4, 3), (40, 1), (12, 4), (24, 2)]):
            recipe = Recipe(epochs=length, batch=8, rate=0.01, crop=1, precision="fp32")
            task = make_task(f"t{number}", each=each)
            torch.manual_seed(number)
            network = grown.models.convnet(classes=3)
            batches = Batches(task.train, measure(task.train), recipe, "cpu", number)

            def tell(epoch: Epoch, number: int = number, told: list[tuple[int, int]] = told) -> None:
                told.append((number, epoch.number))

            works.append(Work(network, plain_groups(network), batches, recipe, after_epoch=tell))
        if together:
            lanes._side_by_side(works, 2)
        else:
            for work in works:
                steps = PlainSteps(work)
                work.network.train()
                for epoch in range(1, work.recipe.epochs + 1):
                    tell = work.after_epoch
                    assert tell is not None
                    tell(Epoch(epoch, work.recipe.epochs, steps.epoch(epoch)))
        states.append([work.network.state_dict() for work in works])
        epochs.append(sorted(told))
    assert epochs[0] == epochs[1]
    for one, other in zip(*states, strict=True):
        assert all(torch.allclose(other[key], value, atol=1e-5) for key, value in one.items())


def test_a_tasks_size_is_measured_once_and_with_all_that_is_kept_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = grown.Learner(grown.models.convnet(), quick())
    measured = []
    size = learner.size
    monkeypatch.setattr(learner, "size", lambda: measured.append(size()) or measured[-1])
    report = learner.learn(make_task("t"))
    assert measured == [report.size]
    assert report.size == size()  # what is remembered of its images is in it
    assert learner.records["t"].features is not None
