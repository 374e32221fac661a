"""Methods that share one network: what protects earlier tasks, each beside an independent computation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.config import Config, Recipe
from grown.data.normalisation import measure
from grown.data.part import Part
from grown.errors import ConfigError, FileError
from grown.io import container, journal
from grown.methods import method
from grown.methods.lwf import distillation
from grown.methods.replay import memory
from grown.methods.shared import SharedMethod
from grown.methods.shared.importance import mean_of_gradients
from grown.methods.shared.training import Guard, Training
from grown.train.batches import Batches
from grown.train.evaluate import evaluate
from grown.train.loop import fit
from grown.train.steps import PlainSteps, Work
from helpers import assert_same_state, assert_same_update, goes_on_from_its_file, make_task, quick, stopped_and_resumed
from test_loop import Imitated

SHARED = ("sequential", "ewc", "si", "mas", "lwf", "replay", "apd")


class Tiny(nn.Module):
    """Small enough to be computed by hand: a layer of kernels without norm or bias, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 4, bias=False)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


def features(name: str, seed: int = 0, each: int = 8) -> grown.Task:
    """Two classes of three numbers."""
    draw = np.random.default_rng(seed)
    labels = np.repeat([0, 1], each)
    x = draw.normal(size=(2 * each, 3)).astype(np.float32) + labels[:, None] * draw.normal(size=3)
    return grown.Task(name, train=(x, labels), test=(x, labels), classes=["a", "b"])


def tiny(name: str, **changes: object) -> SharedMethod:
    torch.manual_seed(0)
    made: SharedMethod = method(name)(Tiny(), quick(**changes))
    return made


def convnet(name: str, **changes: object) -> SharedMethod:
    torch.manual_seed(0)
    recipe = changes.pop("recipe", None) or Recipe(epochs=4, batch=16, rate=0.05)
    made: SharedMethod = method(name)(grown.models.convnet(width=0.25), quick(recipe=recipe, **changes))
    return made


def fitted(task: grown.Task, config: Config) -> Part:
    return task.hold_out(config.holdout, config.seed)[0]


def weight_of(made: SharedMethod, task: str) -> Tensor:
    return made.network(task).state_dict()["hidden.weight"]


# --- importances, beside loops and differences --------------------------------------------------------------------


def test_ewc_weighs_by_the_fisher_information_of_true_labels() -> None:
    made, task = tiny("ewc"), features("t")
    made.learn(task)
    network, part = made.network("t"), fitted(task, made.config)
    network.requires_grad_(True)
    by_hand = torch.zeros(4, 3)
    for x, label in zip(made.normalisation("t")(part.images), part.labels, strict=True):
        likelihood = torch.log(torch.softmax(network(x[None])[0], 0)[label])
        (slope,) = torch.autograd.grad(likelihood, [network.get_parameter("hidden.weight")])
        by_hand += slope**2
    found = made.state().tensors["shared/importance"].view(4, 3)
    assert torch.allclose(found, by_hand / len(part), rtol=1e-4, atol=1e-9)
    assert float(found.max()) > 0


def test_mas_weighs_by_what_moves_the_squared_length_of_the_logits() -> None:
    made, task = tiny("mas"), features("t")
    made.learn(task)
    part = fitted(task, made.config)
    network = made.network("t").double()
    x = made.normalisation("t")(part.images).double()
    weight, by_hand = network.get_parameter("hidden.weight"), torch.zeros(4, 3, dtype=torch.float64)
    for row, column in itertools.product(range(4), range(3)):
        lengths = []
        for step in (1e-5, -1e-5):
            weight[row, column] += step
            lengths.append(network(x).square().sum(1))
            weight[row, column] -= step
        by_hand[row, column] = ((lengths[0] - lengths[1]) / 2e-5).abs().mean()
    found = made.state().tensors["shared/importance"].view(4, 3).double()
    assert torch.allclose(found, by_hand, rtol=1e-3, atol=1e-7)


def test_importances_of_tasks_add_up_and_no_more_images_are_asked_for_than_said() -> None:
    made, asked = tiny("ewc", importance_images=3), []
    first = made.learn(features("t0")).size
    one = made.state().tensors["shared/importance"]
    second = made.learn(features("t1", seed=1)).size
    both = made.state().tensors["shared/importance"]
    assert bool((both >= one).all())
    assert not torch.equal(both, one)
    assert second.bytes["kernels"] == first.bytes["kernels"]

    def count(logits: Tensor, labels: Tensor) -> Tensor:
        asked.append(len(labels))
        return F.cross_entropy(logits, labels)

    (training,) = made._trainings(features("t2", seed=2))
    mean_of_gradients(training, 3, 0, count, torch.square)
    assert asked == [1, 1, 1]


@pytest.mark.parametrize(("name", "factor"), [("ewc", 0.5), ("si", 1.0), ("mas", 1.0)])
def test_the_penalty_is_the_weighted_distance_from_where_the_last_task_ended(name: str, factor: float) -> None:
    made = tiny(name, **{f"{name}_strength": 0.7}, recipe=Recipe(epochs=2, batch=4, rate=0.01))
    made.learn(features("t0"))
    (training,) = made._trainings(features("t1", seed=1))
    guard = made._guard(training)
    assert guard.penalty is not None
    assert float(guard.penalty().detach()) == 0.0
    anchor, (kernel,) = weight_of(made, "t0"), training.kernels.values()
    with torch.no_grad():
        kernel += torch.linspace(-1, 1, 12).view(4, 3)
    importance = made.state().tensors["shared/importance"].view(4, 3)
    by_hand = (
        factor
        * 0.7
        * sum(
            float(importance[row, column]) * float(kernel.detach()[row, column] - anchor[row, column]) ** 2
            for row, column in itertools.product(range(4), range(3))
        )
    )
    assert float(guard.penalty().detach()) == pytest.approx(by_hand, rel=1e-5)
    assert by_hand > 0


def test_no_strength_makes_a_step_overshoot() -> None:
    made = tiny("ewc", ewc_strength=1e9, recipe=Recipe(epochs=8, batch=4, rate=0.1))
    made.learn(features("t0"))
    before = weight_of(made, "t0")
    made.learn(features("t1", seed=1))
    assert float((weight_of(made, "t1") - before).abs().max()) < 0.2
    free = tiny("ewc", ewc_strength=0.0, recipe=Recipe(epochs=8, batch=4, rate=0.1))
    for number in range(2):
        free.learn(features(f"t{number}", seed=number))
    plain = tiny("sequential", recipe=Recipe(epochs=8, batch=4, rate=0.1))
    for number in range(2):
        plain.learn(features(f"t{number}", seed=number))
    assert torch.equal(weight_of(free, "t0"), weight_of(plain, "t0"))


# --- SI: the path, step by step -----------------------------------------------------------------------------------


def test_si_sums_the_path_integral_of_the_tasks_own_loss() -> None:
    recipe = Recipe(epochs=1, batch=4, rate=0.1, momentum=0.0, weight_decay=0.0, schedule="constant")
    made = tiny("si", recipe=recipe, si_strength=0.3, si_damping=0.05)
    made.learn(features("t0"))
    before = made.state().tensors["shared/importance"].view(4, 3).clone()
    task = features("t1", seed=1)
    part = fitted(task, made.config)
    assert len(part) // 4 == 3  # steps

    # The same three steps of gradient descent by hand, on a copy.
    network = made._begin(task).requires_grad_(True)
    kernel, anchor = network.get_parameter("hidden.weight"), weight_of(made, "t0")
    batches = Batches(part, measure(part), recipe, "cpu", 0, "t1", "plain")
    batches.begin(1)
    omega = torch.zeros(4, 3)
    for step in range(3):
        batch, old = batches.at(step), kernel.detach().clone()
        loss = F.cross_entropy(network(batch.x), batch.labels)
        task_slope = torch.autograd.grad(loss, [kernel], retain_graph=True)[0]
        network.zero_grad()
        (loss + 0.3 * (before * (kernel - anchor).square()).sum()).backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.1 * parameter.grad
        omega -= task_slope * (kernel.detach() - old)
    by_hand = before + omega.clamp_min(0) / ((kernel.detach() - anchor).square() + 0.05)

    made.learn(task)
    assert torch.allclose(weight_of(made, "t1"), kernel, atol=1e-6)
    assert torch.allclose(made.state().tensors["shared/importance"].view(4, 3), by_hand, rtol=1e-3, atol=1e-6)
    assert float(omega.max()) > 0


# --- LwF ----------------------------------------------------------------------------------------------------------


def test_distillation_is_the_papers_formula() -> None:
    logits, taught = torch.randn(5, 3), torch.randn(5, 3)
    total = 0.0
    for z, y in zip(logits.tolist(), taught.tolist(), strict=True):
        ours, theirs = (np.exp(row) / np.exp(row).sum() for row in (np.array(z), np.array(y)))
        ours, theirs = (p ** (1 / 2) / (p ** (1 / 2)).sum() for p in (ours, theirs))
        total -= float((theirs * np.log(ours)).sum())
    assert float(distillation(logits, taught, 2.0)) == pytest.approx(total / 5, rel=1e-5)


def test_lwf_distils_what_every_earlier_network_answers_to_the_new_images() -> None:
    made = tiny("lwf", lwf_strength=0.5, lwf_temperature=3.0)
    for number in range(2):
        made.learn(features(f"t{number}", seed=number))
    task = features("t2", seed=2)
    teachers = [made.network(name) for name in made.tasks]
    (training,) = made._trainings(task)
    guard = made._guard(training)
    training.batches.begin(1)
    batch = training.batches.at(0)
    raw = batch.x * torch.tensor(training.normalise.deviation) + torch.tensor(training.normalise.mean)
    with torch.no_grad():
        training.kernels["hidden.weight"] += 0.3
    by_hand = 0.0
    for name, teacher in zip(made.tasks, teachers, strict=True):
        student = made.network(name)
        student.get_parameter("hidden.weight").copy_(training.kernels["hidden.weight"].detach())
        x = made.normalisation(name)(raw)
        by_hand += 0.5 * float(distillation(student(x), teacher(x), 3.0))
    assert guard.extra_loss is not None
    loss = guard.extra_loss(batch, [])
    assert float(loss.detach()) == pytest.approx(by_hand, rel=1e-4)
    loss.backward()
    assert training.kernels["hidden.weight"].grad is not None
    assert guard.aside is not None
    assert all(parameter.grad is not None for parameter in guard.aside.parameters())


# --- replay -------------------------------------------------------------------------------------------------------


def test_the_memory_is_class_balanced_within_its_bytes_and_in_the_file() -> None:
    room = 66 * 40  # an 8x8 image and its label
    made = convnet("replay", memory_bytes=room)
    for number, classes in enumerate((2, 3, 4)):
        task = make_task(f"t{number}", classes=classes, each=30, seed=number)
        made.learn(task)
        state = made.state().tensors
        kept = {name: tensor for name, tensor in state.items() if name.endswith(("/images", "/labels"))}
        places = (20, 8, 4)[number]  # 40 images for 2, 5 and 9 classes
        taken = sum(tensor.nbytes for tensor in kept.values())
        assert room * 0.6 < taken <= room
        counts = [torch.bincount(kept[f"task/{n + 1}/labels"].long()) for n in range(number + 1)]
        assert {int(count) for row in counts for count in row} == {places}
        images = kept[f"task/{number + 1}/images"]
        assert images.dtype == torch.uint8
        known = {bytes(image.numpy().tobytes()) for image in fitted(task, made.config).images}
        assert all(bytes(image.numpy().tobytes()) in known for image in images)
        assert made.size().bytes["other"] > taken


def test_replay_trains_on_its_memory() -> None:
    made = convnet("replay")
    tasks = [make_task(f"t{number}", seed=number) for number in range(2)]
    made.learn(tasks[0])
    (training,) = made._trainings(tasks[1])
    guard = made._guard(training)
    kept = made._memory["t0"]
    assert [batches.steps for batches in guard.beside] == [training.batches.steps]
    known = made.normalisation("t0")(kept.images)
    (batches,) = guard.beside
    batches.begin(1)
    seen = batches.at(0)
    for x, label in zip(seen.x, seen.labels, strict=True):
        same = (known == x).flatten(1).all(1)
        assert label in kept.labels[same]
    assert guard.extra_loss is not None
    assert guard.aside is not None
    guard.extra_loss(seen, [seen]).backward()
    assert all(kernel.grad is not None and bool(kernel.grad.any()) for kernel in training.kernels.values())
    assert all(parameter.grad is not None for parameter in guard.aside.parameters())


def test_a_memory_without_room_is_refused_before_anything_is_trained() -> None:
    made = convnet("replay", memory_bytes=66 * 5)
    made.learn(make_task("t0"))
    with pytest.raises(ConfigError, match="an image of each class, 396 bytes by now, but is 330"):
        made.learn(make_task("t1"))
    assert made.tasks == ["t0"]
    part = Part(torch.zeros(5, 1, 2, 2), torch.tensor([0, 0, 1, 1, 1]))
    made = convnet("replay")  # where nothing is stated, an image of each class has room
    for number in range(2):
        made.learn(make_task(f"t{number}", classes=12, each=4))
    assert made.state().tensors["task/1/labels"].sort().values.tolist() == list(range(12))
    assert memory.cut(part, 2).labels.tolist() == [0, 0, 1, 1]
    assert memory.cut(part, 9).labels.tolist() == [0, 0, 1, 1, 1]
    assert memory.repeated(part, 7).labels.tolist() == [0, 0, 1, 1, 1, 0, 0]


# --- the loop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHARED[1:])
def test_a_captured_step_computes_the_plain_update(name: str) -> None:
    recipe = Recipe(epochs=1, batch=8, rate=0.01, precision="fp32", crop=1, flip=True)
    made = convnet(name, recipe=recipe)
    made.learn(make_task("t0"))
    found = []
    for kind in (PlainSteps, Imitated):
        (training,) = made._trainings(make_task("t1", seed=1))
        guard = made._guard(training)
        if guard.aside is not None:
            training.network.add_module("+aside", guard.aside)
        steps = kind(_work(training, guard))
        losses = steps.epoch(1)
        steps.finish()
        found.append((losses, training.network.state_dict()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert found[0][1].keys() == found[1][1].keys()
    for key, value in found[0][1].items():
        assert torch.allclose(value.float(), found[1][1][key].float(), rtol=1e-3, atol=1e-5), key


def _work(training: Training, guard: Guard) -> Work:
    network = training.network
    groups = [{"name": "weights", "params": list(network.parameters())}]
    return Work(
        network,
        groups,
        training.batches,
        training.recipe,
        penalty=guard.penalty,
        beside=guard.beside,
        extra_loss=guard.extra_loss,
        around_update=guard.around_update,
    )


def test_batches_beside_others_have_as_many_steps() -> None:
    made, task = convnet("sequential"), make_task("t0")
    made._check([task])
    (training,) = made._trainings(task)
    short = Batches(training.part.take(torch.arange(8)), training.normalise, training.recipe, "cpu", 0)
    with pytest.raises(ValueError, match="as many steps"):
        Work(training.network, [], training.batches, training.recipe, beside=(short,))


# --- whole methods ------------------------------------------------------------------------------------------------


def test_the_first_task_is_scratchs_and_the_kernels_are_stored_once() -> None:
    scratch, made = (convnet(name) for name in ("scratch", "sequential"))
    for learner in (scratch, made):
        learner.learn(make_task("t0"))
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(scratch.network("t0")(x), made.network("t0")(x))
    report = made.learn(make_task("t1", seed=1))
    assert report.size.size_x == 1.0
    assert (report.grew, report.new_kernels["grown"]) == (False, 0)
    kernels = [{k: v for k, v in made.network(t).state_dict().items() if v.ndim == 4} for t in made.tasks]
    assert all(torch.equal(kernels[0][key], kernels[1][key]) for key in kernels[0])
    norms = [{k: v for k, v in made.network(t).state_dict().items() if "running" in k} for t in made.tasks]
    assert not any(torch.equal(norms[0][key], norms[1][key]) for key in norms[0])


def _forgets(name: str) -> float:
    """Points of test accuracy that the first task loses by others unlike it."""
    made = convnet(name, recipe=Recipe(epochs=10, batch=16, rate=0.1))
    tasks = [make_task(f"t{number}", classes=4, each=20, seed=number, noise=60.0) for number in range(3)]
    scores = []
    for task in tasks:
        made.learn(task)
        network = made.network("t0")
        scores.append(evaluate(network, tasks[0].test, made.normalisation("t0"), "cpu").accuracy)
    return scores[0] - scores[-1]


def test_sequential_forgets_and_the_others_forget_less() -> None:
    lost = {name: _forgets(name) for name in SHARED}
    assert lost["sequential"] > 10.0
    assert all(lost[name] < lost["sequential"] for name in SHARED[1:]), lost


@pytest.mark.parametrize("name", SHARED)
def test_a_file_goes_on_as_if_it_had_never_been_one(name: str, tmp_path: Path) -> None:
    tasks = [make_task(f"t{number}", seed=number) for number in range(3)]
    whole = convnet(name, refit=True, kernel_format="bf16")
    report = goes_on_from_its_file(whole, tasks, tmp_path)
    assert [(stage.name, stage.val) for stage in report.stages] == [("train", report.val), ("refit", None)]


@pytest.mark.parametrize("name", SHARED)
def test_a_task_that_was_stopped_goes_on_from_an_epoch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)  # every epoch is kept
    tasks = [make_task(f"t{number}", seed=number) for number in range(2)]
    whole, halted = convnet(name), convnet(name)
    for learner in (whole, halted):
        learner.learn(tasks[0])
    whole.learn(tasks[1])
    halted.save(tmp_path / "m")
    seen: list[int] = []

    def tell(event: dict[str, Any]) -> bool:
        seen.append(event["epoch"])
        return seen == [1, 2]

    again = stopped_and_resumed(halted, tmp_path / "m", tasks[1], tmp_path / "journal", tell)
    assert seen == [1, 2, 3, 4]
    assert_same_state(again, whole)


def _forged(path: Path, name: str, change: object) -> None:
    tensors, meta = container.load(path)
    if change is None:
        del tensors[name]
    else:
        tensors[name] = change  # type: ignore[assignment]
    container.save(path, tensors, meta)


@pytest.mark.parametrize(
    ("name", "tensor", "change", "words"),
    [
        ("sequential", "shared/kernels", None, "lacks shared/kernels"),
        ("sequential", "shared/kernels", torch.zeros(3), "needs .* floats"),
        ("sequential", "shared/importance", torch.zeros(3), "holds shared/importance"),
        ("sequential", "task/1/own", torch.zeros(3), "needs .* floats"),
        ("ewc", "shared/importance", None, "lacks shared/importance"),
        ("ewc", "shared/importance", torch.zeros(3), "needs .* floats"),
        ("ewc", "shared/importance", torch.full((3,), -1.0), "negative"),
        ("replay", "task/1/images", torch.zeros(3, 1, 8, 9, dtype=torch.uint8), "does not go with"),
        ("replay", "task/1/labels", torch.full((3,), 9, dtype=torch.int16), "an image and a label"),
    ],
)
def test_what_a_stranger_changed_is_refused(
    name: str, tensor: str, change: Tensor | None, words: str, tmp_path: Path
) -> None:
    made = convnet(name, recipe=Recipe(epochs=1, batch=16))
    made.learn(make_task("t0"))
    made.save(tmp_path / "m")
    _forged(tmp_path / "m", tensor, change)
    with pytest.raises(FileError, match=words):
        grown.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ewc_strength", -1.0),
        ("si_strength", float("nan")),
        ("si_damping", 0.0),
        ("lwf_temperature", 0.0),
        ("importance_images", 0),
        ("memory_bytes", 0),
        ("memory_bytes", 1.5),
    ],
)
def test_settings_are_checked(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=setting):
        Config(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHARED)
def test_captured_steps_on_a_gpu_train_as_plain_ones_do(name: str) -> None:
    recipe = Recipe(epochs=1, batch=8, rate=0.01, precision="fp32", crop=1, flip=True)
    made = convnet(name, recipe=recipe, device="cuda")
    made.learn(make_task("t0"))
    found = []
    for capture in (False, True):
        (training,) = made._trainings(make_task("t1", seed=1))
        guard = made._guard(training)
        if guard.aside is not None:
            training.network.add_module("+aside", guard.aside)
        fit(_work(training, guard), capture=capture)
        found.append({key: value.float().cpu() for key, value in training.network.state_dict().items()})
    assert_same_update(*found)
