"""DEN: tracing, expansion and splitting beside networks whose answers say what they should be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grown
import helpers
from grown.config import Config, Recipe
from grown.errors import ConfigError, FileError
from grown.io import container, journal
from grown.methods import method
from grown.methods.den import DEN, units
from grown.methods.den.course import Course
from grown.methods.den.shape import Shape, values_of
from grown.methods.shared.training import Weights
from grown.nn.groups import find_channels
from grown.nn.trace import trace
from grown.train import loop
from grown.train.steps import PlainSteps
from helpers import (
    Branchy,
    assert_same_state,
    assert_same_update,
    goes_on_from_its_file,
    make_task,
    quick,
    stopped_and_resumed,
)
from test_loop import Imitated

NEVER, ALWAYS = 1e9, 0.0


learned: Callable[..., DEN] = partial(helpers.learned, "den")


def branchy() -> tuple[Shape, Weights]:
    """A network with an addition and a concatenation, as data; every value drawn."""
    torch.manual_seed(0)
    graph = trace(Branchy(), (1, 8, 8))
    shape = Shape(graph, find_channels(graph))
    state = values_of(method("den")(Branchy(), quick(), input_shape=(1, 8, 8)).training.fresh(make_task("t"), 0))
    draw = torch.Generator().manual_seed(1)
    return shape, {key: torch.randn(value.shape, generator=draw).abs() * 0.2 for key, value in state.items()}


def sparse(state: Weights, shape: Shape, share: float) -> Weights:
    draw = torch.Generator().manual_seed(2)
    found = {key: value.clone() for key, value in state.items()}
    for kernels in (*shape.kernels(found).values(), shape.head(found)):
        kernels[torch.rand(kernels.shape[:2], generator=draw) > share] = 0.0
    return found


# --- (1) selective retraining -------------------------------------------------------------------------------------


def test_the_trace_finds_what_the_answers_depend_on() -> None:
    """In a network without norms and biases: kernels are connected just where the answers have a slope."""
    torch.manual_seed(0)
    template = nn.Sequential(
        nn.Flatten(), nn.Linear(9, 12, bias=False), nn.Linear(12, 10, bias=False), nn.Linear(10, 2)
    )
    graph = trace(template, (1, 3, 3))
    shape, widths = Shape(graph, find_channels(graph)), find_channels(graph).template_widths()
    state = sparse({key: value.detach().abs() + 0.1 for key, value in template.state_dict().items()}, shape, 0.15)
    state["1.weight"] = template[1].weight.detach().abs() + 0.1  # all units are fed: where none is, there is no slope
    network = shape.network(state, widths).double().requires_grad_(True)
    network(torch.rand(4, 1, 3, 3, dtype=torch.float64)).sum().backward()
    found = units.connected(shape, state, widths)
    for name, kernels in shape.kernels(
        {key: network.get_parameter(key).grad for key in state if "bias" not in key}
    ).items():
        slope = (kernels != 0).flatten(2).any(2) & (shape.kernels(state)[name] != 0).flatten(2).any(2)
        assert torch.equal(found[name], slope)
        assert 0 < int(slope.sum()) < slope.numel()


def test_the_trace_goes_through_additions_and_concatenations() -> None:
    """Whatever the answers have a slope for is connected; a head that reads one unit reaches only what makes it."""
    shape, state = branchy()
    state = sparse(state, shape, 0.3)
    widths = shape.channels.template_widths()
    network = shape.network(state, widths).requires_grad_(True)
    network(torch.randn(8, 1, 8, 8)).sum().backward()
    found = units.connected(shape, state, widths)
    for name, flags in found.items():
        slope = network.get_parameter(f"{name}.weight").grad.view(*flags.shape, -1).any(2)
        present = (shape.kernels(state)[name] != 0).flatten(2).any(2)
        assert not bool((slope & present & ~flags).any()), name
        assert not bool((flags & ~present).any())
    head = shape.head(state)
    head.zero_()
    assert not any(bool(flags.any()) for flags in units.connected(shape, state, widths).values())
    head[0, 3] = 1.0
    alone = units.connected(shape, state, widths)["hidden"]
    assert alone.any(1).nonzero().flatten().tolist() == [3]


def test_only_the_sub_network_is_retrained_and_it_is_held() -> None:
    made = learned(1, recipe=Recipe(epochs=3, batch=16))
    task = make_task("t1", seed=1)
    course = Course(made, task, task.train, task.test, made.config.recipe)
    free = {name: torch.rand(kernels.shape[:2]) > 0.5 for name, kernels in course._kernels().items()}
    course._retrain(free)
    moved = []
    for name, kernels in course._kernels().items():
        change = (kernels - course.shape.kernels(course.before)[name]).flatten(2).abs().amax(2)
        assert float(change[~free[name]].max()) == 0.0
        moved.append(float(change[free[name]].mean()))
    assert min(moved) > 0
    held = Course(made, task, task.train, task.test, made.config.recipe)
    made.config = made.config.replace(den_drift=NEVER)
    held._retrain(free)
    for (name, kernels), before in zip(held._kernels().items(), moved, strict=True):
        change = (kernels - held.shape.kernels(held.before)[name]).flatten(2).abs().amax(2)
        assert float(change[free[name]].mean()) < before


def test_a_selection_trains_the_head_alone() -> None:
    made = learned(1)
    made.config = made.config.replace(den_sparsity=0.12)
    task = make_task("t1", seed=1)
    course = Course(made, task, task.train, task.test, made.config.recipe)
    free = course._select()
    head = course.shape.graph.head.name
    changed = {
        key for key, value in course.now.items() if "running" not in key and not torch.equal(value, course.before[key])
    }
    assert changed == {f"{head}.weight", f"{head}.bias"}
    weights = course.shape.head(course.now)
    assert float(weights[weights != 0].abs().min()) > 0.12
    assert 0 < sum(int(flags.sum()) for flags in free.values()) < sum(flags.numel() for flags in free.values())


# --- (2) expansion ------------------------------------------------------------------------------------------------


def test_a_wider_network_answers_as_before_until_new_units_are_read() -> None:
    shape, state = branchy()
    old = shape.channels.template_widths()
    new = tuple(width + (0 if group.fixed else 3) for group, width in zip(shape.channels.groups, old, strict=True))
    wide = shape.widen(state, old, new)
    x = torch.randn(5, 1, 8, 8)
    assert torch.allclose(shape.network(wide, new)(x), shape.network(state, old)(x), atol=1e-5)
    back = shape.gather(wide, new, [torch.arange(width) for width in old])
    assert all(torch.equal(back[key], value) for key, value in state.items())


def test_dead_units_are_dropped_and_settled_ones_never() -> None:
    shape, state = branchy()
    old = shape.channels.template_widths()
    new = tuple(width + (0 if group.fixed else 4) for group, width in zip(shape.channels.groups, old, strict=True))
    wide = shape.widen(state, old, new)
    kernels = shape.kernels(wide)
    for group, name in enumerate(("stem", "right", "down", "hidden"), start=1):
        bank, flags = shape.banks[name], [torch.arange(width) >= before for width, before in zip(new, old, strict=True)]
        rows, columns = shape.spread(bank, flags)
        kernels[name][rows] = 1.0
        kernels[name][old[group]] = 1e-4  # the first new unit is hardly fed
        kernels[name][:, columns] = 0.0
    for name in ("down", "hidden"):
        kernels[name][:, -2] = 1.0  # of the concatenated or the last input, the last but one new unit is read
    shape.head(wide)[:, -1] = 1.0
    kernels["down"][:4] = 0.0  # a settled unit may be as dead as it likes
    stay = units.alive(shape, wide, new, old, 0.01)
    assert stay[0].tolist() == [0]
    assert stay[1].tolist()[: old[1]] == list(range(old[1]))
    assert stay[2].tolist() == [*range(old[2]), old[2] + 2]
    assert stay[3].tolist() == [*range(old[3]), old[3] + 2]
    assert stay[4].tolist() == [*range(old[4]), old[4] + 3]


def test_a_task_sees_only_the_units_of_its_time() -> None:
    made = learned(
        3, den_loss=ALWAYS, den_split=NEVER, den_group=ALWAYS, den_units=3, recipe=Recipe(epochs=3, batch=16)
    )
    widths = [entry["widths"] for entry in made.state().meta["tasks"]]
    template = list(made.training.channels.template_widths())
    assert widths[0] == template
    assert all(now > then for a, b in itertools.pairwise(widths) for then, now in zip(a[1:], b[1:], strict=True))
    convolutions = [
        [module for module in made.network(name).modules() if isinstance(module, nn.Conv2d)] for name in made.tasks
    ]
    for then, now in zip(convolutions[0], convolutions[2], strict=True):
        rows, columns = then.weight.shape[:2]
        assert torch.equal(then.weight, now.weight[:rows, :columns])
        assert now.weight.shape[0] > rows
    report = made.learn(make_task("t3", seed=3))
    assert report.grew
    assert report.new_kernels["grown"] == made._count(made.training.widths) - made._count(tuple(widths[2]))
    assert report.size.size_x == sum(v.numel() for v in made._shared.values()) / made.base_parameters


@pytest.mark.parametrize(("changes", "stages"), [
    ({"den_loss": NEVER, "den_split": NEVER}, ["select", "retrain"]),
    ({"den_loss": ALWAYS, "den_split": NEVER}, ["select", "retrain", "expand"]),
    ({"den_loss": ALWAYS, "den_split": NEVER, "den_units": 0}, ["select", "retrain"]),
    ({"den_loss": NEVER, "den_split": ALWAYS}, ["select", "retrain", "split"]),
])  # fmt: skip
def test_each_step_is_taken_when_it_is_due(changes: dict[str, float], stages: list[str]) -> None:
    made = learned(1, recipe=Recipe(epochs=4, batch=16), **changes)
    report = made.learn(make_task("t1", seed=1))
    assert [stage.name for stage in report.stages] == stages
    assert [stage.epochs for stage in report.stages] == [{"select": 1, "retrain": 4}.get(name, 2) for name in stages]
    assert [stage.val for stage in report.stages] == [*[None] * (len(stages) - 1), report.val]


def test_the_loss_that_decides_leaves_out_what_smoothing_costs() -> None:
    made = learned(1, recipe=Recipe(epochs=2, batch=16, smoothing=0.2))
    task = make_task("t1", classes=4, seed=1)
    course = Course(made, task, task.train, task.test, made.config.recipe)
    course._retrain({name: kernels.new_zeros(kernels.shape[:2]) > 0 for name, kernels in course._kernels().items()})
    found = course._loss()
    network = course.training.network
    answers = torch.log_softmax(network(course.normalise(task.train.images)), 1)
    by_hand = -float(answers[torch.arange(len(answers)), task.train.labels].mean())
    assert found == pytest.approx(by_hand + math.log(0.8 + 0.2 / 4), abs=1e-5)


# --- (3) splitting ------------------------------------------------------------------------------------------------


def test_drift_is_the_distance_of_all_that_makes_a_unit() -> None:
    shape, before = branchy()
    widths = shape.channels.template_widths()
    now = {key: value.clone() for key, value in before.items()}
    kernels = shape.kernels(now)
    kernels["stem"][2, 0, 0, 0] += 0.3  # 0.3 and 0.4 in the two layers whose channels are added: 0.5
    kernels["left"][2, 5, 1, 1] += 0.4
    kernels["down"][7, 1] += 0.1  # nine weights: 0.3
    found = units.drifted(shape, now, before, widths, 0.45)
    assert [flags.nonzero().flatten().tolist() for flags in found] == [[], [2], [], [], []]
    found = units.drifted(shape, now, before, widths, 0.29)
    assert [flags.nonzero().flatten().tolist() for flags in found] == [[], [2], [], [7], []]


def test_a_network_whose_units_are_all_split_holds_both_what_it_was_and_what_it_became() -> None:
    shape, before = branchy()
    widths = shape.channels.template_widths()
    now = {key: value.clone() for key, value in before.items()}
    for kernels in shape.kernels(now).values():
        kernels += torch.randn(kernels.shape) * 0.1
    flags = shape.whole([torch.ones(width, dtype=torch.bool) for width in widths])
    state, wide = units.split(shape, now, before, widths, widths, flags)
    assert wide == tuple(
        width * (1 if group.fixed else 2) for group, width in zip(shape.channels.groups, widths, strict=True)
    )
    x = torch.randn(5, 1, 8, 8)
    assert torch.allclose(shape.network(state, wide)(x), shape.network(now, widths)(x), atol=1e-4)
    old = shape.gather(state, wide, [torch.arange(width) for width in widths])
    assert all(torch.equal(old[f"{name}.weight"], before[f"{name}.weight"]) for name in shape.banks)


def test_one_unit_is_split_and_the_others_keep_their_drift() -> None:
    shape, before = branchy()
    widths = shape.channels.template_widths()
    now = {key: value + 0.01 for key, value in before.items()}
    flags = [torch.zeros(width, dtype=torch.bool) for width in widths]
    flags[3][4] = True
    state, wide = units.split(shape, now, before, widths, widths, flags)
    assert wide == (1, 12, 8, 17, 20)
    down, hidden = shape.kernels(state)["down"], shape.kernels(state)["hidden"]
    was, became = shape.kernels(before), shape.kernels(now)
    assert torch.equal(down[4], was["down"][4])
    assert torch.equal(down[16], became["down"][4])
    assert torch.equal(down[5], became["down"][5])
    assert torch.equal(hidden[:, :16], became["hidden"])
    assert not bool(hidden[:, 16].any())


def test_where_every_unit_is_split_nothing_is_forgotten() -> None:
    made = learned(1, den_split=ALWAYS, recipe=Recipe(epochs=3, batch=16))
    x = torch.randn(4, 1, 8, 8)
    before = made.network("t0")(x)
    made.learn(make_task("t1", seed=1))
    assert made.state().meta["tasks"][1]["widths"] != made.state().meta["tasks"][0]["widths"]
    assert torch.allclose(made.network("t0")(x), before, atol=1e-6)


# --- files and the loop -------------------------------------------------------------------------------------------


def test_a_file_goes_on_as_if_it_had_never_been_one(tmp_path: Path) -> None:
    whole = learned(0, Branchy(), refit=True, kernel_format="bf16", den_loss=ALWAYS, den_split=0.01)
    report = goes_on_from_its_file(whole, [make_task(f"t{number}", seed=number) for number in range(3)], tmp_path)
    names = [stage.name for stage in report.stages]
    assert names[:2] == ["select", "retrain"]
    assert "refit-retrain" in names


def test_a_task_that_was_stopped_goes_on_from_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)  # every epoch is kept
    settings: dict[str, object] = {"den_loss": ALWAYS, "den_split": 0.01, "recipe": Recipe(epochs=4, batch=16)}
    whole, halted, task = learned(1, **settings), learned(1, **settings), make_task("t1", seed=1)
    report = whole.learn(task)
    halted.save(tmp_path / "m")
    seen: list[int] = []

    def tell(event: dict[str, Any]) -> bool:
        seen.append(event["epoch"])
        return len(seen) == 6  # in the expansion

    again = stopped_and_resumed(halted, tmp_path / "m", task, tmp_path / "journal", tell)
    assert len(seen) == sum(stage.epochs for stage in report.stages)
    assert_same_state(again, whole)


def test_captured_steps_compute_the_plain_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(epochs=1, batch=8, rate=0.01, precision="fp32")
    made = learned(1, recipe=recipe, den_loss=ALWAYS, den_split=NEVER)
    task, found = make_task("t1", seed=1), []
    for kind in (PlainSteps, Imitated):
        monkeypatch.setattr(loop, "PlainSteps", kind)
        course = Course(made, task, task.train, task.test, recipe)
        course.run()
        found.append((course.widths, course.now))
    assert found[0][0] == found[1][0]
    assert_same_update(found[0][1], found[1][1])


@pytest.mark.parametrize("kind", ["branchy", "lenet", "grouped"])
def test_channels_that_only_suit_a_device_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They train as zeros: the same units and the same updates, but for rounding, and zeros in the end."""
    torch.manual_seed(0)
    template = {"branchy": Branchy, "lenet": lambda: grown.models.backbone("lenet", 3, 0.3), "grouped": Grouped}[kind]()
    template.apply(lambda module: setattr(module, "p", 0.0) if isinstance(module, nn.Dropout) else None)
    images, recipe = (32, 32, 3) if kind == "lenet" else (8, 8, 1), Recipe(epochs=2, batch=8, rate=0.01)
    settings: dict[str, object] = {"den_loss": ALWAYS, "den_split": ALWAYS, "den_group": 1e-9, "den_units": 3}
    made = method("den")(template, quick(recipe=recipe, **settings))
    first, task = (make_task(f"t{number}", shape=images, each=8, seed=number) for number in range(2))
    made.learn(first)
    found, beyond, gather = [], [], Shape.gather

    def watched(shape: Shape, state: Weights, widths: tuple[int, ...], sources: list[Tensor]) -> Weights:
        if widths != course.widths:  # a training ended, and what is not the network's own is left out
            new = [torch.arange(width) >= own for width, own in zip(widths, course.widths, strict=True)]
            for name, kernels in shape.kernels(state).items():
                rows, columns = shape.spread(shape.banks[name], new)
                beyond.append(kernels[rows[:, None] | columns])
        return gather(shape, state, widths, sources)

    monkeypatch.setattr(Shape, "gather", watched)
    for multiple in (1, 8):
        made.config = made.config.replace(width_multiple=multiple)
        course = Course(made, task, task.train, task.test, recipe)
        course.run()
        found.append((course.widths, course.now))
        assert (multiple == 8) == (len(beyond) > 0)
    assert [stage.name for stage in course.stages] == ["select", "retrain", "expand", "split"]
    assert found[0][0] == found[1][0]
    assert_same_update(found[0][1], found[1][1])
    assert sum(values.numel() for values in beyond) > 0
    assert not any(bool(values.any()) for values in beyond)


@pytest.mark.parametrize(
    ("widths", "words"),
    [
        ([[1, 6, 12, 24], [1, 6, 12, 25]], "does not go with its tasks' widths"),
        ([[1, 6, 12, 23], [1, 6, 12, 24]], "fewer units"),
        ([[1, 6, 12, 25], [1, 6, 12, 24]], "fewer units"),
        ([[2, 6, 12, 24], [2, 6, 12, 24]], "cannot have 2 channels"),
        ([[1, 6, 12, 24], [1, 6, 12, 2**31]], "does not go with its tasks' widths"),
        ([[1, 6, 12], [1, 6, 12, 24]], "a list of 4"),
    ],
)
def test_what_a_stranger_changed_is_refused(widths: list[list[int]], words: str, tmp_path: Path) -> None:
    made = learned(2, den_loss=NEVER, den_split=NEVER, recipe=Recipe(epochs=1, batch=16))
    made.save(tmp_path / "m")
    tensors, meta = container.load(tmp_path / "m")
    assert [entry["widths"] for entry in meta["tasks"]] == [[1, 6, 12, 24]] * 2
    for entry, changed in zip(meta["tasks"], widths, strict=True):
        entry["widths"] = changed
    container.save(tmp_path / "m", tensors, meta)
    with pytest.raises(FileError, match=words):
        grown.load(tmp_path / "m")


class Grouped(nn.Module):
    """Depthwise kernels, and a norm over groups of channels: units come and go by four."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.GroupNorm(2, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.depth(torch.relu(self.stem(x))))).mean((2, 3)))


@pytest.mark.parametrize("backbone", ["lenet", "vgg16-bn", "resnet18", "grouped"])
def test_it_runs_on_every_backbone(backbone: str) -> None:
    torch.manual_seed(0)
    shape = (8, 8, 1) if backbone == "grouped" else (32, 32, 3)
    template = Grouped() if backbone == "grouped" else grown.models.backbone(backbone, 3, 0.1)
    settings: dict[str, object] = {"den_loss": ALWAYS, "den_split": 1e-3, "den_group": 1e-6, "den_units": 2}
    made = method("den")(template, quick(recipe=Recipe(epochs=1, batch=8), **settings))
    for number in range(2):
        made.learn(make_task(f"t{number}", shape=shape, each=6, seed=number))
    assert made.network("t0")(torch.zeros(1, shape[2], *shape[:2])).shape == (1, 3)
    first, last = (entry["widths"] for entry in made.state().meta["tasks"])
    assert sum(last) > sum(first)
    assert backbone != "grouped" or all(width % 4 == 0 for width in last[1:])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("den_sparsity", -1.0), ("den_group", float("nan")), ("den_drift", -0.1), ("den_units", -1), ("den_split", "far")],
)
def test_settings_are_checked(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=setting):
        Config(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.gpu
def test_it_learns_on_a_gpu() -> None:
    made = learned(0, den_loss=ALWAYS, den_split=0.01, device="cuda", recipe=Recipe(epochs=8, batch=16))
    for number in range(2):
        report = made.learn(make_task(f"t{number}", each=24, seed=number))
        assert report.val > 80.0
    assert made.network("t0")(torch.zeros(1, 1, 8, 8)).shape == (1, 3)
