"""Low-rank updates of a frozen network, beside an independent computation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.config import Config, Recipe
from grown.errors import ConfigError, FileError
from grown.io import container
from grown.methods import method
from grown.methods.adapter import Adapter
from grown.methods.adapter.low_rank import LowRank, factor_shapes, rank_within, updated
from grown.methods.plain import plain_groups
from grown.train.batches import Batches
from grown.train.loop import fit
from grown.train.steps import Work
from helpers import Branchy, assert_same_update, goes_on_from_its_file, make_task, quick
from test_loop import Imitated
from test_regularised import Tiny, features, fitted


class Deep(nn.Module):
    """A depthwise layer and one whose padding is not zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6, padding_mode="circular")
        self.norm = nn.BatchNorm2d(6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.depth(self.stem(x)))).mean((2, 3)))


def made(template: nn.Module, **changes: object) -> Adapter:
    torch.manual_seed(0)
    adapter: Adapter = method("adapter")(template, quick(**changes))
    return adapter


def two(template: nn.Module, **changes: object) -> Adapter:
    adapter = made(template, **changes)
    for number in range(2):
        adapter.learn(make_task(f"t{number}", classes=3 + number, seed=number))
    return adapter


def test_an_update_is_the_sum_of_outer_products_in_exact_order() -> None:
    draw = torch.Generator().manual_seed(0)
    weight, b, a = (torch.randn(shape, generator=draw) for shape in ((4, 2, 3, 3), (4, 3), (3, 18)))
    by_hand = weight.flatten(1).numpy().copy()
    for rank in range(3):
        for row in range(4):
            for column in range(18):
                by_hand[row, column] += np.float32(b[row, rank].item()) * np.float32(a[rank, column].item())
    assert np.array_equal(updated(weight, b, a).flatten(1).numpy(), by_hand)
    assert torch.allclose(updated(weight, b, a).flatten(1), weight.flatten(1) + b @ a, atol=1e-5)


def test_a_rank_has_no_more_numbers_than_its_layer() -> None:
    for shape, rank in (((32, 16, 3, 3), 4), ((24, 1, 3, 3), 6), ((6, 1, 3, 3), 3), ((8, 1), 1), ((5, 7), 2)):
        assert rank_within(torch.Size(shape), 1) == 1
        mine = rank_within(torch.Size(shape), 4 if rank == 4 else 10**9)
        assert mine == rank
        rows, columns = shape[0], int(np.prod(shape[1:]))
        assert mine * (rows + columns) <= rows * columns or mine == 1
    shapes = factor_shapes({"a.weight": torch.Size([6, 2, 3, 3])}, 2)
    assert shapes == {"a.b": torch.Size([6, 2]), "a.a": torch.Size([2, 18])}


def test_a_training_is_gradient_descent_on_both_factors_alone() -> None:
    recipe = Recipe(epochs=1, batch=4, rate=0.1, momentum=0.0, weight_decay=0.0, schedule="constant")
    adapter = made(Tiny(), recipe=recipe)
    adapter.learn(features("t0"))
    frozen = adapter.network("t0").get_parameter("hidden.weight").clone()
    task = features("t1", seed=1)
    network = adapter._begin(task)
    layer = network.get_submodule("hidden")
    assert isinstance(layer, LowRank)
    b, a = layer.b.detach().clone().requires_grad_(True), layer.a.detach().clone().requires_grad_(True)
    head = [network.get_parameter(f"out.{key}").detach().clone().requires_grad_(True) for key in ("weight", "bias")]
    assert not bool(b.any())
    part = fitted(task, adapter.config)
    batches = Batches(part, adapter._trainings(task)[0].normalise, recipe, "cpu", 0, "t1", "plain")
    batches.begin(1)
    for step in range(batches.steps):
        batch = batches.at(step)
        logits = F.linear(torch.tanh(batch.x @ (frozen + b @ a).T), head[0], head[1])
        F.cross_entropy(logits, batch.labels).backward()
        with torch.no_grad():
            for parameter in (b, a, *head):
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    adapter.learn(task)
    assert torch.allclose(adapter.network("t1").get_parameter("hidden.weight"), frozen + b @ a, atol=1e-6)
    assert torch.allclose(adapter.network("t1").get_parameter("out.weight"), head[0], atol=1e-6)
    assert torch.equal(adapter.network("t0").get_parameter("hidden.weight"), frozen)
    assert not torch.equal(adapter.network("t1").get_parameter("hidden.weight"), frozen)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("template", [Branchy, Deep])
def test_every_layer_of_a_later_task_differs_from_the_first_ones_by_its_rank(
    template: type[nn.Module], rank: int
) -> None:
    adapter = two(template(), adapter_rank=rank)
    first, second = (adapter.network(f"t{number}").state_dict() for number in range(2))
    for key, shape in adapter._kernel_shapes.items():
        change = (second[key] - first[key]).flatten(1).double()
        values = torch.linalg.svdvals(change)
        mine = rank_within(shape, rank)
        assert float(values[mine - 1]) > 1e-6, key
        assert bool((values[mine:] < 1e-5 * values[0] + 1e-7).all()), key
    assert not torch.equal(first[_norm(first)], second[_norm(second)])


def _norm(state: dict[str, Tensor]) -> str:
    return next(key for key in state if key.endswith("running_mean"))


def test_the_first_task_is_scratchs_and_sizes_count_the_factors() -> None:
    torch.manual_seed(0)
    scratch = method("scratch")(grown.models.convnet(width=0.25), quick())
    torch.manual_seed(0)
    adapter = method("adapter")(grown.models.convnet(width=0.25), quick())
    for learner in (scratch, adapter):
        learner.learn(make_task("t0"))
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(scratch.network("t0")(x), adapter.network("t0")(x))
    assert adapter.size().size_x == 1.0
    report = adapter.learn(make_task("t1", seed=1))
    factors = (6 + 9) + (12 + 6 * 9) + (24 + 12 * 9)
    base = 6 * 9 + 6 * 12 * 9 + 12 * 24 * 9
    assert adapter.base_parameters == base
    assert report.size.size_x == pytest.approx(1 + factors / base)
    assert (report.grew, report.new_kernels["grown"]) == (False, 0)


@pytest.mark.parametrize(("kernel_format", "refit"), [("fp32", False), ("bf16", True)])
def test_a_file_goes_on_as_if_it_had_never_been_one(kernel_format: str, refit: bool, tmp_path: Path) -> None:
    tasks = [make_task(f"t{number}", classes=2 + number, seed=number) for number in range(3)]
    adapter = made(Branchy(), kernel_format=kernel_format, refit=refit, adapter_rank=2)
    report = goes_on_from_its_file(adapter, tasks, tmp_path)
    assert [stage.name for stage in report.stages] == ["train", "refit"][: 1 + refit]
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[kernel_format]
    assert container.load(tmp_path / "2")[0]["task/2/factors"].dtype == kind


@pytest.mark.parametrize("name", ["lenet", "resnet18", "vgg16-bn"])
def test_it_works_on_the_librarys_backbones(name: str) -> None:
    template = grown.models.backbone(name, channels=1, width=0.04, image=32)
    adapter = made(template, recipe=Recipe(epochs=1, batch=16))
    x, known = torch.randn(2, 1, 32, 32), {}
    for number in range(2):
        adapter.learn(make_task(f"t{number}", shape=(32, 32, 1), each=6, seed=number))
        known[f"t{number}"] = adapter.network(f"t{number}")(x)
        assert all(torch.equal(adapter.network(task)(x), logits) for task, logits in known.items())


def trained(adapter: Adapter, train: Callable[[Work], None]) -> dict[str, Tensor]:
    """A second task's network after an epoch of small steps."""
    (training,) = adapter._trainings(make_task("t1", seed=1))
    train(Work(training.network, plain_groups(training.network), training.batches, training.recipe))
    return {key: value.float().cpu() for key, value in training.network.state_dict().items()}


STEPS = Recipe(epochs=1, batch=8, rate=0.01, precision="fp32", crop=1, flip=True)


def test_a_captured_step_computes_the_plain_update() -> None:
    adapter = made(grown.models.convnet(width=0.25), recipe=STEPS)
    adapter.learn(make_task("t0"))

    def imitated(work: Work) -> None:
        Imitated(work).epoch(1)

    plain, captured = trained(adapter, fit), trained(adapter, imitated)
    assert any(bool(value.any()) for key, value in plain.items() if key.endswith(".b"))
    for key, value in plain.items():
        assert torch.allclose(captured[key], value, rtol=1e-3, atol=1e-5), key


@pytest.mark.gpu
def test_captured_steps_on_a_gpu_train_as_plain_ones_do() -> None:
    adapter = made(grown.models.convnet(), recipe=STEPS, device="cuda")
    adapter.learn(make_task("t0"))
    plain, captured = trained(adapter, partial(fit, capture=False)), trained(adapter, fit)
    assert_same_update(plain, captured)


@pytest.mark.parametrize(
    ("tensor", "change", "words"),
    [
        ("task/2/factors", None, "lacks task/2/factors"),
        ("task/2/factors", torch.zeros(3), "needs .* floats"),
        ("task/1/factors", torch.zeros(3), "holds task/1/factors"),
        ("task/2/factors", torch.zeros(3, dtype=torch.int64), "does not go with"),
        ("shared/kernels", torch.zeros(3), "needs .* floats"),
    ],
)
def test_what_a_stranger_changed_is_refused(tensor: str, change: Tensor | None, words: str, tmp_path: Path) -> None:
    two(Deep(), recipe=Recipe(epochs=1, batch=16)).save(tmp_path / "m")
    tensors, meta = container.load(tmp_path / "m")
    tensors.pop(tensor, None)
    container.save(tmp_path / "m", tensors if change is None else {**tensors, tensor: change}, meta)
    with pytest.raises(FileError, match=words):
        grown.load(tmp_path / "m")


def test_a_rank_is_whole_and_stays_what_it_is() -> None:
    for value in (0, 1.5, True):
        with pytest.raises(ConfigError, match="adapter_rank"):
            Config(adapter_rank=value)  # type: ignore[arg-type]
    adapter = two(Deep(), recipe=Recipe(epochs=1, batch=16))
    with pytest.raises(ConfigError, match="adapter_rank is 1, but got 2"):
        adapter.configure(adapter.config.replace(adapter_rank=2))
    adapter.configure(adapter.config.replace(seed=3))
