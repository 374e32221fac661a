"""A later task may start as the earlier task whose features suit it best."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import grown
from grown.config import Recipe
from grown.methods.grown import algorithm
from grown.methods.grown.related import most_related
from grown.methods.grown.settled import Settled
from grown.methods.grown.stage import Stage
from helpers import Branchy, make_task, quick, shake


def learned(**changes: object) -> grown.Learner:
    torch.manual_seed(0)
    learner = grown.Learner(grown.models.convnet(), quick(start="related", max_size=3.0, **changes))
    for number in range(2):
        stage = learner.open(make_task(f"t{number}"))
        shake(stage, seed=number)
        stage.commit()
    return learner


@pytest.mark.parametrize("backbone", ["convnet", "branchy"])
def test_it_starts_as_that_tasks_network(backbone: str) -> None:
    torch.manual_seed(0)
    template = grown.models.convnet() if backbone == "convnet" else Branchy()
    learner = grown.Learner(template, quick(start="related", max_size=3.0))
    for number in range(2):
        stage = learner.open(make_task(f"t{number}"))
        shake(stage, seed=number)
        stage.commit()
    stage = learner.open(make_task("t2"))
    assert stage.related is not None
    assert stage.expand()  # appended channels change nothing either, as long as nobody reads them
    x = stage.normalise(stage.fit.images)
    known = learner.extract(stage.related.name)
    found: list[torch.Tensor] = []
    known.get_submodule(learner.graph.head.name).register_forward_pre_hook(lambda _, given: found.append(given[0]))
    stage.network.head.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    for network in (known, stage.network):
        # Norms use the batch's own statistics in both, since a new task has none of its own yet.
        network.train()
        for part in network.modules():
            if isinstance(part, torch.nn.Dropout):
                part.eval()
        network(x)
    axis = learner.channels.output[learner.graph.head.inputs[0]]
    kept = torch.cat([stage.related.kept[group] for group in axis.groups]).repeat_interleave(axis.repeat)
    assert found[0].shape[1] == int(kept.sum())
    assert torch.allclose(found[1][:, : len(kept)][:, kept], found[0], atol=1e-5)


@pytest.mark.parametrize("growth", ["slim", "open"])
def test_what_is_appended_to_it_can_come_into_use(growth: str) -> None:
    """A channel that nobody reads needs an open gate to be read by somebody, a closed gate a kernel to open for."""
    stage = learned(growth=growth).open(make_task("t2"))
    assert stage.expand()
    torch.nn.functional.cross_entropy(stage.network(stage.normalise(stage.fit.images)), stage.fit.labels).backward()
    settled = stage.network.settled
    for node in stage.learner.graph.banked()[1:]:
        (group,) = stage.network.channels.output[node.inputs[0]].groups
        readers = stage.network.layer(node.name).weight.grad[: settled[group], settled[group] :]  # (old out, new in)
        learns = readers if growth == "open" else stage.network.gates[str(group)].grad
        assert bool((learns != 0).any())


def test_the_most_related_task_is_the_one_whose_features_fit() -> None:
    """Two tasks whose classes differ in the left or in the right half; a third one is like the second."""
    draw = np.random.default_rng(0)
    patterns = draw.integers(0, 256, (2, 3, 8, 4, 1))

    def task(name: str, side: int) -> grown.Task:
        labels = np.arange(90) % 3
        pictures = draw.integers(0, 256, (90, 8, 8, 1))
        half = slice(4 * side, 4 * side + 4)
        pictures[:, :, half] = patterns[side][labels] * 0.8 + pictures[:, :, half] * 0.2
        return grown.Task(name, train=(pictures.astype(np.uint8), labels), test=(pictures.astype(np.uint8), labels))

    recipe = Recipe(epochs=12, batch=16, rate=0.05)
    learner = grown.Learner(grown.models.convnet(), quick(start="related", recipe=recipe, holdout=0.3))
    for name, side in (("left", 0), ("right", 1)):
        learner.learn(task(name, side))
    for name, side, expected in (("left again", 0, "left"), ("right again", 1, "right")):
        stage = learner.open(task(name, side))
        assert most_related(stage).name == expected


def test_a_refit_starts_as_the_same_task() -> None:
    learner = learned(refit=True, target=100.0, expansions=1, trial=False)
    stage = learner.open(make_task("t2"))
    again = stage.anew(1, all_data=True)
    assert again.related is stage.related
    assert again.expansions == 1


def test_an_expansion_anew_is_the_training_of_a_task_that_expands_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained: list[torch.Tensor] = []
    train = algorithm.train

    def watched(stage: Stage) -> Settled:
        settled = train(stage)
        trained.append(torch.cat([value.flatten().float() for value in settled.network.state_dict().values()]))
        return settled

    monkeypatch.setattr(algorithm, "train", watched)
    for anew in (True, False):
        report = learned(target=100.0, expansions=1, growth="open", anew=anew).learn(make_task("t2", noise=120.0))
        assert [stage.name for stage in report.stages] == ["reuse", "expand"]
    stage = learned(growth="open").open(make_task("t2", noise=120.0))
    assert stage.expand()
    watched(stage)
    first_reuse, from_start, second_reuse, resumed, by_hand = trained
    assert torch.equal(first_reuse, second_reuse)
    assert torch.equal(from_start, by_hand)
    assert not torch.equal(resumed, by_hand)


def weights(learner: grown.Learner, task: str) -> torch.Tensor:
    return torch.cat([value.flatten().float() for value in learner.extract(task).state_dict().values()])


ANEW = {"anew": True, "target": 100.0, "expansions": 1, "growth": "open", "recipe": Recipe(epochs=4, batch=16)}


@pytest.mark.parametrize(
    ("more", "hopeless", "trainings"),
    [
        ({}, 0.0, [("glance", 2), ("expand", 4)]),
        ({}, 100.0, [("glance", 2), ("reuse", 4), ("expand", 4)]),
        ({}, 0.0, [("glance", 2), ("expand", 4), ("reuse", 4)]),  # where that brings nothing
        ({"step_size": 1e-6}, 0.0, [("reuse", 4)]),  # where nothing can grow, reuse is never given up
        ({"grow": False}, 0.0, [("reuse", 4)]),
        ({"target": 0.0}, 0.0, [("glance", 2), ("reuse", 4)]),
    ],
)
def test_reuse_that_is_hopeless_at_a_glance_is_not_trained_to_its_end(
    more: dict[str, object], hopeless: float, trainings: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing but time depends on it: the network is the same as without a glance."""
    real = algorithm.train

    def train(stage: Stage) -> Settled:
        settled = real(stage)
        in_vain = stage.name == "expand" and trainings[-1][0] == "reuse"
        return dataclasses.replace(settled, val=dataclasses.replace(settled.val, accuracy=0.0)) if in_vain else settled

    monkeypatch.setattr(algorithm, "train", train)
    found = []
    for glance in (0.5, 0.0):
        learner = learned(**{**ANEW, **more, "glance": glance, "hopeless": hopeless})
        report = learner.learn(make_task("t2", noise=120.0))
        assert learner.stage is None
        found.append((report, weights(learner, "t2")))
    (glanced, quickly), (_, plainly) = found
    assert [(stage.name, stage.epochs) for stage in glanced.stages] == trainings
    assert torch.equal(quickly, plainly)
    assert found[0][0].val == found[1][0].val


def test_a_first_task_is_not_glanced_at_and_what_follows_a_glance_begins_anew() -> None:
    learner = grown.Learner(grown.models.convnet(), quick(**{**ANEW, "glance": 0.5, "hopeless": 0.0}))
    assert "glance" not in {stage.name for stage in learner.learn(make_task("t0")).stages}
    for lacking in ({"anew": False}, {"trial": False, "refit": True}):
        with pytest.raises(grown.ConfigError, match="glance needs anew=True and trial=True"):
            quick(**{**ANEW, "glance": 0.5, **lacking})


def test_a_task_that_has_no_room_to_expand_anew_keeps_what_it_has() -> None:
    """Trained, a first task has closed channels, so that there is room; from the start all of it is taken."""
    trainings: list[object] = []

    def watch(event: dict[str, object]) -> None:
        trainings.extend([event] if event["event"] == "stage" else [])
        assert len(trainings) <= 2, "trained again though nothing could be added"

    closing = quick(anew=True, growth="open", target=100.0, expansions=3, growth_weight=1e3, gate_start=1e-4)
    learner = grown.Learner(grown.models.convnet(), closing, observer=watch)
    stage = learner.open(make_task("t0", noise=120.0))
    algorithm.train(stage)
    assert stage.expand()
    report = learner.learn(make_task("t0", noise=120.0))
    assert [stage.name for stage in report.stages] == ["expand"]
    assert learner.stage is None


def test_an_expansion_without_a_trial_is_trained_by_the_refit_alone() -> None:
    learner = learned(refit=True, target=100.0, expansions=1, trial=False)
    report = learner.learn(make_task("t2", noise=120.0))
    assert [stage.name for stage in report.stages] == ["reuse", "refit"]
    with pytest.raises(grown.ConfigError, match="needs refit=True"):
        quick(trial=False)
