"""Progressive networks: columns and laterals beside a forward pass written by hand, a frozen past, widths by budget."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.config import Config, Recipe
from grown.errors import ConfigError, FileError
from grown.io import container
from grown.methods import method
from grown.methods.plain import plain_groups
from grown.methods.pnn import PNN
from grown.methods.pnn.columns import EARLIER, Frozen, Lateral, settled
from grown.methods.pnn.columns import lateral as plain_lateral
from grown.methods.pnn.layout import Layout
from grown.nn import banded
from grown.nn.groups import find_channels
from grown.nn.trace import trace
from grown.train.loop import fit
from grown.train.steps import Work
from helpers import Branchy, assert_same_update, goes_on_from_its_file, make_task, quick
from test_adapter import Deep
from test_loop import Imitated


class Straight(nn.Module):
    """A layer of each kind that has a lateral: convolution, linear behind a flattening, linear behind that, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12)
        self.next = nn.Conv2d(12, 16, 3, stride=2, padding=1, bias=False)
        self.hidden = nn.Linear(16 * 4, 20)
        self.last = nn.Linear(20, 18)
        self.out = nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = F.max_pool2d(torch.tanh(self.next(x)), 2)
        x = torch.relu(self.hidden(x.flatten(1)))
        return self.out(torch.relu(self.last(x)))


def made(template: nn.Module | None = None, **changes: object) -> PNN:
    torch.manual_seed(0)
    pnn: PNN = method("pnn")(template if template is not None else Straight(), quick(**changes))
    return pnn


def tasks(count: int) -> list[grown.Task]:
    return [make_task(f"t{number}", classes=2 + number, seed=number) for number in range(count)]


def learned(count: int, template: nn.Module | None = None, **changes: object) -> PNN:
    pnn = made(template, **{"pnn_width": 0.5, **changes})
    for task in tasks(count):
        pnn.learn(task)
    return pnn


# --- what a network computes ----------------------------------------------------------------------------------------


def by_hand(pnn: PNN, x: Tensor) -> list[Tensor]:
    """Every column's logits, with W and U apart: f(W h + U relu(V [earlier h]) + b), in double precision."""
    logits: list[Tensor] = []
    activations: dict[str, list[Tensor]] = {"stem": [], "next": [], "hidden": [], "last": []}
    for task in pnn.tasks:
        weights = {k: v.double() for k, v in {**pnn._kernels[task], **pnn._own[task]}.items()}
        laterals = {k: v.double() for k, v in pnn._laterals[task].items()}

        def layer(name: str, own: Tensor, before: str, weights: dict = weights, laterals: dict = laterals) -> Tensor:
            earlier, weight, bias = activations[before], weights[f"{name}.weight"], weights.get(f"{name}.bias")
            run = partial(F.conv2d, stride=2, padding=1) if name == "next" else F.linear
            if not earlier:
                return run(own, weight, bias)
            width = own.shape[1]
            joined = torch.cat([part.flatten(2) if part.ndim == 4 else part[..., None] for part in earlier], 1)
            adapted = torch.relu(torch.einsum("oi,bip->bop", laterals[name], joined))
            if name == "next":
                return run(own, weight[:, :width], bias) + run(adapted.view(own.shape), weight[:, width:])
            return run(own, weight[:, :width], bias) + run(adapted.flatten(1), weight[:, width:])

        stem = F.conv2d(x, weights["stem.weight"], weights["stem.bias"], padding=1)
        mean, var = weights["norm.running_mean"], weights["norm.running_var"]
        h = {"stem": torch.relu(F.batch_norm(stem, mean, var, weights["norm.weight"], weights["norm.bias"]))}
        h["next"] = F.max_pool2d(torch.tanh(layer("next", h["stem"], "stem")), 2)
        h["hidden"] = torch.relu(layer("hidden", h["next"].flatten(1), "next"))
        h["last"] = torch.relu(layer("last", h["hidden"], "hidden"))
        logits.append(layer("out", h["last"], "last"))
        for name, value in h.items():
            activations[name].append(value)
    return logits


def test_a_tasks_network_is_its_column_over_all_earlier_ones() -> None:
    pnn = learned(3, recipe=Recipe(epochs=4, batch=16))
    x = torch.randn(5, 1, 8, 8, dtype=torch.float64)
    for task, logits in zip(pnn.tasks, by_hand(pnn, x), strict=True):
        assert torch.allclose(pnn.network(task)(x.float()).double(), logits, rtol=1e-4, atol=1e-5)
    assert all(bool(weight.any()) for weight in pnn._laterals["t2"].values())


def test_a_lateral_matters_and_reads_only_earlier_columns() -> None:
    pnn = learned(3)
    x = torch.randn(5, 1, 8, 8)
    known = {task: pnn.network(task)(x) for task in pnn.tasks}
    pnn._laterals["t1"]["last"] += 1.0
    assert torch.equal(pnn.network("t0")(x), known["t0"])
    assert not torch.equal(pnn.network("t1")(x), known["t1"])
    assert not torch.equal(pnn.network("t2")(x), known["t2"])  # through the second column


def test_scalars_weigh_whole_columns_and_go_into_the_1x1_layer() -> None:
    layout = Layout(pnn_graph := trace(Straight(), (1, 8, 8)), find_channels(pnn_graph), (1, 3, 2, 2, 2))
    for name, shape in (("next", (4, 6, 8, 8)), ("hidden", (4, 16)), ("last", (4, 4))):
        source = layout.places[name]
        width, total = layout.lateral_shapes(3)[name]
        assert total == 2 * width
        trained = Lateral(torch.randn(width, total), 2, 0.1, layout.channels.output[source].repeat)
        with torch.no_grad():
            trained.scale.copy_(torch.tensor([0.5, -2.0]))
        x = torch.randn(shape)
        plain = settled(plain_lateral(layout, name, 3), trained.folded().detach())
        scaled = torch.cat([0.5 * x[:, : shape[1] // 2], -2.0 * x[:, shape[1] // 2 :]], 1)
        with torch.no_grad():
            trained.scale.fill_(1.0)
        assert torch.allclose(plain(x), trained(scaled), atol=1e-5)
        assert {type(module).__module__.partition(".")[0] for module in plain.modules()} == {"torch"}


# --- which layers have laterals -------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Places where a lateral makes no sense: behind the input alone, and depthwise."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.depth = nn.Conv2d(7, 7, 3, padding=1, groups=7)
        self.mix = nn.Conv2d(7, 8, 1)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(x, 2)
        x = torch.cat([x, torch.relu(self.first(x))], 1)
        return self.out(torch.relu(self.mix(torch.relu(self.depth(x)))).mean((2, 3)))


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (Straight, ["next", "hidden", "last", "out"]),
        (Branchy, ["left", "right", "down", "hidden", "out"]),
        (Deep, ["out"]),
        (Odd, ["mix", "out"]),
    ],
)
def test_laterals_are_where_channels_mix_behind_a_kernel(template: type[nn.Module], names: list[str]) -> None:
    pnn = learned(2, template(), recipe=Recipe(epochs=1, batch=16))
    assert list(pnn._laterals["t1"]) == names
    assert pnn._laterals["t0"] == {}
    x = torch.randn(3, 1, 8, 8)
    assert pnn.network("t1")(x).shape == (3, 3)
    modules = dict(pnn.network("t1").named_modules())
    assert f"column1.{names[-1]}" not in modules  # an earlier column has no head here
    assert f"column2.{names[-1]}" in modules


@pytest.mark.parametrize("name", ["lenet", "resnet18", "vgg16-bn"])
def test_it_works_on_the_librarys_backbones(name: str) -> None:
    template = grown.models.backbone(name, channels=1, width=0.08, image=32)
    pnn = made(template, recipe=Recipe(epochs=1, batch=16), pnn_width=0.5)
    x, known = torch.randn(2, 1, 32, 32), {}
    for number in range(2):
        pnn.learn(make_task(f"t{number}", shape=(32, 32, 1), each=6, seed=number))
        known[f"t{number}"] = pnn.network(f"t{number}")(x)
        assert all(torch.equal(pnn.network(task)(x), logits) for task, logits in known.items())


# --- training -------------------------------------------------------------------------------------------------------


def test_earlier_columns_are_frozen_wholly() -> None:
    pnn = learned(2)
    (training,) = pnn._trainings(tasks(3)[2])
    network = training.network.train()
    inside = network.get_submodule(EARLIER)
    assert isinstance(inside, Frozen)
    (columns,) = inside._columns
    assert {type(module) for module in columns.modules() if module.training} == {nn.MaxPool2d}
    before = {key: value.clone() for key, value in columns.state_dict().items()}
    assert len(before) > 10
    mine = {id(parameter) for parameter in network.parameters()}
    assert mine.isdisjoint(id(parameter) for parameter in columns.parameters())
    assert not any(key.startswith(EARLIER) for key in network.state_dict())
    fit(Work(network, plain_groups(network), training.batches, training.recipe))
    assert all(torch.equal(value, before[key]) for key, value in columns.state_dict().items())
    scales = [value for key, value in network.state_dict().items() if key.endswith(".scale")]
    assert all(len(scale) == 2 and bool((scale != 0.1).all()) for scale in scales)  # a scalar for each column; trained
    network.double()
    assert all(value.dtype == torch.float64 for value in columns.parameters())  # it goes where the network goes


@pytest.mark.parametrize("template", [Straight, Branchy])
def test_in_half_precision_earlier_columns_are_made_ready_once(template: type[nn.Module]) -> None:
    pnn = made(template())
    for task in tasks(2):
        pnn.learn(task)
    inside = pnn._trainings(tasks(3)[2])[0].network.get_submodule(EARLIER)
    assert isinstance(inside, Frozen)
    x = torch.randn(4, 1, 8, 8)
    exact = inside(x)
    assert not inside._half  # outside of a step they are as they are
    with torch.autocast("cpu", torch.bfloat16):
        found = inside(x)
        (ready,) = inside._half
        assert inside(x)[0].dtype == torch.bfloat16
        assert inside._half == (ready,)
    for one, other in zip(exact, found, strict=True):
        assert float((one - other.float()).norm() / one.norm()) < 0.02
    kinds = [type(module) for module in ready.modules()]
    assert nn.BatchNorm2d not in kinds
    assert nn.Conv2d in kinds
    assert {value.dtype for value in ready.parameters()} == {torch.bfloat16}
    assert all(torch.equal(one, other) for one, other in zip(exact, inside(x), strict=True))
    inside.double()
    assert not inside._half  # it would have stayed behind


def test_what_has_no_parameters_runs_faster_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pnn = made(grown.models.backbone("lenet", width=0.2, image=16))
    for number in range(2):
        pnn.learn(make_task(f"t{number}", each=8, shape=(16, 16, 3), seed=number))
    (training,) = pnn._trainings(make_task("t2", each=8, shape=(16, 16, 3)))
    inside = training.network.get_submodule(EARLIER)
    plain = copy.deepcopy(inside._columns[0]).eval()
    x, taken = torch.randn(4, 3, 16, 16), []
    monkeypatch.setattr(banded, "lrn", lambda *given, was=banded.lrn: taken.append(given) or was(*given))
    training.network.eval()
    exact = inside(x)
    assert all(torch.equal(one, other) for one, other in zip(exact, plain(x), strict=True))
    assert not taken
    training.network.train()
    faster = inside(x)
    assert len(taken) == 4  # two in each column
    assert not all(torch.equal(one, other) for one, other in zip(exact, faster, strict=True))
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(exact, faster, strict=True))


def test_the_first_column_is_a_narrow_network_alone() -> None:
    pnn = learned(1)
    network = pnn.network("t0")
    assert network.get_parameter("column1.next.weight").shape == (8, 6, 3, 3)
    assert network.get_parameter("column1.hidden.weight").shape == (10, 32)
    assert not [name for name, _ in network.named_modules() if name.startswith("lateral")]


def trained(pnn: PNN, train: Callable[[Work], None]) -> dict[str, Tensor]:
    (training,) = pnn._trainings(make_task("t1", seed=1))
    train(Work(training.network, plain_groups(training.network), training.batches, training.recipe))
    return {key: value.float().cpu() for key, value in training.network.state_dict().items()}


STEPS = Recipe(epochs=1, batch=8, rate=0.01, precision="fp32", crop=1, flip=True)


def test_a_captured_step_computes_the_plain_update() -> None:
    pnn = learned(1, recipe=STEPS)

    def imitated(work: Work) -> None:
        Imitated(work).epoch(1)

    plain, captured = trained(pnn, fit), trained(pnn, imitated)
    for key, value in plain.items():
        assert torch.allclose(captured[key], value, rtol=1e-3, atol=1e-5), key


@pytest.mark.gpu
def test_captured_steps_on_a_gpu_train_as_plain_ones_do() -> None:
    pnn = learned(1, grown.models.convnet(), recipe=STEPS, device="cuda")
    plain, captured = trained(pnn, partial(fit, capture=False)), trained(pnn, fit)
    assert_same_update(plain, captured)


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_sizes_count_columns_and_laterals() -> None:
    pnn = made(pnn_width=0.5)
    a, b, c, d = 6, 8, 10, 9  # half of each width
    layers = [(a, 1, 9), (b, a, 9), (c, b, 4), (d, c, 1)]
    sizes, kernels = [], []
    for task in tasks(3):
        report = pnn.learn(task)
        sizes.append(report.size.parameters["kernels"])
        kernels.append(report.new_kernels["grown"])
        assert report.grew
    first = sum(out * into * k for out, into, k in layers)
    twice = first + sum(out * into * k for out, into, k in layers[1:])
    adapters = a * a + b * b + c * c + d * d  # 1x1, for each earlier column
    assert sizes == [first, first + twice + adapters, first + 2 * twice + 3 * adapters]
    assert kernels[0] == sum(out * into for out, into, _ in layers)
    assert kernels[1] == kernels[0] + sum(out * into for out, into, _ in layers[1:]) + adapters
    heads = [pnn.network(task).get_parameter(f"column{n}.out.weight").shape for n, task in enumerate(pnn.tasks, 1)]
    assert heads == [(2, d), (3, 2 * d), (4, 2 * d)]


def test_without_a_width_all_foreseen_columns_keep_to_max_size() -> None:
    recipe = Recipe(epochs=1, batch=16)
    pnn = made(grown.models.convnet(), max_size=1.2, recipe=recipe)
    pnn.foresee(tasks(4))
    for task in tasks(4):
        size = pnn.learn(task).size.size_x
    assert 1.0 < size <= 1.2
    alone = made(grown.models.convnet(), max_size=1.2, recipe=recipe)
    alone.learn(tasks(1)[0])
    wide, narrow = (one._layout().widths for one in (pnn, alone))
    assert all(w > n for w, n in zip(wide[1:], narrow[1:], strict=True))  # not foreseen: room for ten
    assert sum(alone._layout().parameters(number) for number in range(1, 11)) <= 1.2 * alone.base_parameters
    small = made(Straight(), seed_size=0.001, max_size=0.001)
    with pytest.raises(
        ConfigError, match=r"10 columns of the smallest width are .*x of this template, but max_size is"
    ):
        small.learn(tasks(1)[0])
    assert small.tasks == []
    with pytest.raises(ConfigError, match="no task is foreseen"):
        small.foresee([])


def test_widths_come_in_units() -> None:
    pnn = learned(1, grown.models.convnet(), pnn_width=0.4, width_multiple=8, recipe=Recipe(epochs=1, batch=16))
    assert pnn._layout().widths == (1, 8, 16, 32)


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel_format", "refit"), [("fp32", False), ("bf16", True)])
def test_a_file_goes_on_as_if_it_had_never_been_one(kernel_format: str, refit: bool, tmp_path: Path) -> None:
    pnn = made(Branchy(), kernel_format=kernel_format, refit=refit)
    pnn.foresee(tasks(3))
    report = goes_on_from_its_file(pnn, tasks(3), tmp_path)
    assert [stage.name for stage in report.stages] == ["train", "refit"][: 1 + refit]
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[kernel_format]
    stored = container.load(tmp_path / "2")[0]
    assert {stored[f"task/2/{part}"].dtype for part in ("kernels", "laterals")} == {kind}


@pytest.mark.parametrize(
    ("tensor", "change", "words"),
    [
        ("task/2/laterals", None, "lacks task/2/laterals"),
        ("task/2/laterals", torch.zeros(3), "needs .* floats"),
        ("task/1/laterals", torch.zeros(3), "needs 0 floats"),
        ("task/2/kernels", torch.zeros(3), "needs .* floats"),
        ("task/2/head", torch.zeros(3), "needs .* floats"),
        ("shared/kernels", torch.zeros(3), "holds shared/kernels"),
    ],
)
def test_what_a_stranger_changed_is_refused(tensor: str, change: Tensor | None, words: str, tmp_path: Path) -> None:
    learned(2, Deep(), recipe=Recipe(epochs=1, batch=16)).save(tmp_path / "m")
    tensors, meta = container.load(tmp_path / "m")
    tensors.pop(tensor, None)
    container.save(tmp_path / "m", tensors if change is None else {**tensors, tensor: change}, meta)
    with pytest.raises(FileError, match=words):
        grown.load(tmp_path / "m")


@pytest.mark.parametrize("widths", [[], [1, 0], [1, 2**31], [2, 3], [1, "3"], None])
def test_widths_of_a_stranger_are_checked(widths: object, tmp_path: Path) -> None:
    learned(1, Deep(), recipe=Recipe(epochs=1, batch=16)).save(tmp_path / "m")
    tensors, meta = container.load(tmp_path / "m")
    container.save(tmp_path / "m", tensors, {**meta, "widths": widths})
    with pytest.raises(FileError):
        grown.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("backbone", "changes", "columns", "expected"),
    [
        ("lenet", {"max_size": 1.0}, 2, (1, 20, 50)),  # linear layers alone
        ("lenet", {"max_size": 0.1, "seed_size": 0.1}, 2, (1, 3, 7)),  # less than a twentieth, so all are
        ("lenet", {"max_size": 1.0, "shape": "even"}, 2, (1, 9, 23)),
        ("lenet", {"pnn_width": 0.1}, 2, (1, 20, 50, 80, 50)),
        ("convnet", {"pnn_width": 0.5}, 2, (1, 12, 24)),  # it has no hidden ones
    ],
)
def test_columns_may_be_narrow_in_their_linear_layers(
    backbone: str, changes: dict[str, object], columns: int, expected: tuple[int, ...]
) -> None:
    template = grown.models.backbone(backbone, channels=1, image=8)
    pnn: PNN = method("pnn")(template, quick(**{"shape": "hidden", **changes}), input_shape=(1, 8, 8))
    pnn.foresee(tasks(columns))
    assert pnn._layout().widths[: len(expected)] == expected


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), 17.0])
def test_settings_are_checked(value: float) -> None:
    with pytest.raises(ConfigError, match="pnn_width"):
        Config(pnn_width=value)
