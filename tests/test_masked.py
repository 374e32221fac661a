"""What all methods keep that put masks on the kernels of one network."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grown
from fuzzing import Largest
from grown.config import Config, Recipe
from grown.data.normalisation import measure
from grown.errors import ConfigError, FileError
from grown.io import container, journal
from grown.methods import METHODS, method
from grown.methods.masked import MaskedMethod, layers
from grown.methods.masked.layers import Kernels
from grown.methods.masked.method import kernels_of
from grown.methods.wsn import coding
from grown.nn import bits
from grown.train.loop import fit
from grown.train.steps import PlainSteps, Work
from helpers import (
    assert_same_state,
    assert_same_update,
    call,
    goes_on_from_its_file,
    make_task,
    quick,
    stopped_and_resumed,
)
from test_loop import Imitated

MASKED = tuple(name for name, made in METHODS.items() if issubclass(made, MaskedMethod))


class Depthwise(nn.Module):
    """A depthwise layer, group norm, and features that are flattened into a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm = nn.GroupNorm(2, 6)
        self.hidden = nn.Linear(6 * 16, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.depth(torch.relu(self.stem(x)))))
        return self.out(torch.relu(self.hidden(nn.functional.max_pool2d(x, 2).flatten(1))))


def convnet(name: str, **changes: object) -> MaskedMethod:
    torch.manual_seed(0)
    recipe = changes.pop("recipe", None) or Recipe(epochs=4, batch=16, rate=0.05)
    made: MaskedMethod = method(name)(grown.models.convnet(width=0.25), quick(recipe=recipe, **changes))
    return made


def two() -> list[grown.Task]:
    return [make_task("t0"), make_task("t1", classes=4, seed=1)]


@pytest.mark.parametrize("name", MASKED)
def test_a_file_goes_on_as_if_it_had_never_been_one(name: str, tmp_path: Path) -> None:
    tasks = [*two(), make_task("t2", seed=2)]
    whole = convnet(name, refit=True, decide=0.5, kernel_format="bf16")
    report = goes_on_from_its_file(whole, tasks, tmp_path)
    scores = [stage.val for stage in report.stages]
    assert [score for score in scores if score is not None] == [report.val]
    assert scores[-1] is None  # a refit has seen the held-out images


@pytest.mark.parametrize("name", MASKED)
def test_a_task_that_was_stopped_goes_on_from_an_epoch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)  # every epoch is kept
    tasks = two()
    whole, start = convnet(name), tmp_path / "m"
    whole.learn(tasks[0])
    whole.save(start)
    report = whole.learn(tasks[1])
    epochs = sum(stage.epochs for stage in report.stages)
    for stop in (2, epochs - 1):  # once in the first training of the task, once in its last
        seen: list[int] = []

        def tell(event: dict[str, Any], seen: list[int] = seen, stop: int = stop) -> bool:
            seen.append(event["epoch"])
            return len(seen) == stop

        again = stopped_and_resumed(grown.load(start), start, tasks[1], tmp_path / f"journal{stop}", tell)
        assert len(seen) == epochs
        assert_same_state(again, whole)


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("backbone", ["lenet", "vgg16-bn", "vgg16-bn-pool", "resnet18", "resnet50", "depthwise"])
def test_every_backbone_is_learned_and_kept(name: str, backbone: str) -> None:
    torch.manual_seed(0)
    small = backbone == "depthwise"
    template = Depthwise() if small else grown.models.backbone(backbone, 1, 0.03, 32)
    made = method(name)(template, quick(recipe=Recipe(epochs=1, batch=8, rate=0.02)))
    size = 8 if small else 32
    x, known = torch.randn(2, 1, size, size), []
    for number in range(2):
        made.learn(make_task(f"t{number}", classes=2 + number, shape=(size, size, 1), each=6, seed=number))
        known.append(made.network(f"t{number}")(x))
    assert torch.equal(made.network("t0")(x), known[0])
    assert bool(torch.isfinite(known[1]).all())


@pytest.mark.parametrize("name", MASKED)
def test_turned_images_leave_a_plain_head(name: str) -> None:
    made = convnet(name, recipe=Recipe(epochs=2, batch=8, rate=0.05, turns=True))
    for task in two():
        made.learn(task)
    assert made.network("t1")(torch.randn(2, 1, 8, 8)).shape == (2, 4)


@pytest.mark.parametrize("name", MASKED)
def test_a_captured_step_computes_the_plain_update(name: str) -> None:
    recipe = Recipe(epochs=1, batch=8, rate=0.01, precision="fp32", crop=1, flip=True)
    found = []
    for kind in (PlainSteps, Imitated):
        made = convnet(name, recipe=recipe)
        made.learn(make_task("t0"))
        work = _work(made)
        steps = kind(work)
        losses = steps.epoch(1)
        steps.finish()
        found.append((losses, work.network.state_dict()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for key, value in found[0][1].items():
        assert torch.allclose(value.float(), found[1][1][key].float(), rtol=1e-3, atol=1e-4), key


def _work(made: MaskedMethod) -> Work:
    """A second task's training, behind its masks."""
    (training,) = made._trainings(make_task("t1", seed=1))
    layers.install(training.network, kernels_of(made._guard(training)))
    groups = made._groups(training.network)
    assert {group["name"] for group in groups} <= {"weights", "norms", "scores"}
    return Work(training.network, groups, training.batches, training.recipe)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MASKED)
def test_captured_steps_on_a_gpu_train_as_plain_ones_do(name: str) -> None:
    recipe = Recipe(epochs=1, batch=8, rate=0.01, precision="fp32", crop=1, flip=True)
    found = []
    for capture in (False, True):
        made = convnet(name, recipe=recipe, device="cuda")
        made.learn(make_task("t0"))
        work = _work(made)
        fit(work, capture=capture)
        found.append({key: value.float().cpu() for key, value in work.network.state_dict().items()})
    assert_same_update(*found)


def test_what_does_not_train_takes_no_gradient_and_what_is_masked_none_either() -> None:
    layer = nn.Linear(3, 1, bias=False)
    trainable = torch.tensor([[True, False, True]])
    made = Kernels(None, trainable, torch.tensor([[9.0, 7.0, 9.0]]))
    network = nn.Sequential(layer)
    layers.install(network, {"0.weight": made})
    start = layer.weight.detach().clone()
    y = network(torch.tensor([[1.0, 10.0, 100.0]]))
    assert float(y.detach()) == pytest.approx(float(start[0, 0] + 70.0 + 100 * start[0, 2]), rel=1e-5)
    y.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[1.0, 0.0, 100.0]]
    layers.remove(network, {"0.weight": made})
    assert network[0] is layer


@pytest.mark.parametrize("name", MASKED)
def test_a_model_is_shown_and_verified(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = convnet(name, recipe=Recipe(epochs=1, batch=16))
    for task in two():
        made.learn(task)
    made.save(tmp_path / "m")
    assert call("inspect", str(tmp_path / "m")) == 0
    assert "all in one network: t0, t1" in capsys.readouterr().out
    assert call("verify", str(tmp_path / "m")) == 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("packnet", {"packnet_prune": 0.99}),
        ("wsn", {"wsn_density": 0.05}),
        ("supsup", {"supsup_density": 0.01}),
    ],
)
def test_what_is_very_sparse_can_still_be_read(name: str, settings: dict[str, float], tmp_path: Path) -> None:
    """A reader grants a file 100 times its size in memory and 1 MiB, which is little beside this network."""
    template = nn.Sequential(nn.Flatten(), nn.Linear(64, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.Linear(1200, 2))
    recipe = Recipe(epochs=1, batch=16, rate=0.01)
    made = method(name)(template, quick(recipe=recipe, kernel_format="bf16", **settings))
    made.learn(make_task("t0", classes=2, each=10))
    made.save(tmp_path / "m")
    assert made.size().bytes["total"] < 300_000
    x = torch.ones(1, 1, 8, 8)
    assert torch.equal(grown.load(tmp_path / "m").network("t0")(x), made.network("t0")(x))


@pytest.mark.parametrize("name", ["packnet", "wsn"])
def test_a_file_that_claims_a_network_out_of_all_proportion_is_refused(name: str, tmp_path: Path) -> None:
    """Weights that nobody owns take no place, and the codes of a mask stand for a thousand times their bytes."""
    template = nn.Sequential(nn.Flatten(), nn.Linear(64, 3000), nn.ReLU(), nn.Linear(3000, 3000), nn.Linear(3000, 2))
    made, task = method(name)(template, quick()), make_task("t0", classes=2)
    made._check([task])
    network = made._begin(task).state_dict()
    made._own["t0"] = {key: network[key] for part in made._own_shapes("t0", task.classes).values() for key in part}
    made._shared = {key: torch.zeros(shape) for key, shape in made._kernel_shapes.items()}
    if name == "packnet":
        made._owner = torch.zeros(made._elements, dtype=torch.int16)
    else:
        made._picked["t0"] = torch.zeros(bits.packed_length(made._elements), dtype=torch.uint8)
        coder = zlib.compressobj(9, zlib.DEFLATED, coding.RAW)
        coded = coder.compress(bytes(len(made._picked["t0"]))) + coder.flush()
        made._coded["t0"] = torch.tensor(list(coded), dtype=torch.uint8)
    made._records["t0"] = (task.classes, measure(task.train), torch.zeros(8, 2), 50.0)
    size = made.save(tmp_path / "m")
    assert size < 60_000
    with Largest() as largest, pytest.raises(FileError, match="at most 100 times as many are granted"):
        grown.load(tmp_path / "m")
    assert largest.bytes <= 2 * size


BAD = [
    ("packnet", "shared/owners", None, "lacks shared/owners"),
    ("packnet", "shared/owners", torch.full((2, 3), 255, dtype=torch.uint8), "does not go with"),
    ("packnet", "shared/owners", "full", "owner is task 3, but 1 were learned"),
    ("packnet", "shared/kernels", torch.zeros(3), "weights are used, but shared/kernels holds 3"),
    ("packnet", "task/1/own", torch.zeros(3), "needs .* floats"),
    ("wsn", "task/2/picked", torch.zeros(3, dtype=torch.uint8), "task/2/picked is not"),
    ("wsn", "task/2/picked", torch.zeros(3), "does not go with"),
    ("wsn", "task/1/picked", None, "lacks task/1/picked"),
    ("wsn", "shared/kernels", torch.zeros(3), "weights are used, but shared/kernels holds 3"),
    ("wsn", "shared/owners", torch.zeros(3), "holds shared/owners"),
    ("piggyback", "task/1/picked", torch.zeros(3, dtype=torch.uint8), "holds task/1/picked"),
    ("piggyback", "task/2/picked", torch.zeros(3, dtype=torch.uint8), "does not go with"),
    ("piggyback", "shared/kernels", torch.zeros(3), "needs .* floats"),
    ("ksm", "task/2/soft", torch.zeros(3), "task/2/soft must hold"),
    ("ksm", "task/2/soft", "soft", "values from 0 to 0.5"),
    ("ksm", "task/2/soft", None, "lacks task/2/soft"),
    ("supsup", "shared/kernels", torch.zeros(3), "holds shared/kernels"),
    ("supsup", "task/1/picked", torch.zeros(0, dtype=torch.uint8), "does not go with"),
]


@pytest.mark.parametrize(("name", "tensor", "change", "words"), BAD)
def test_what_a_stranger_changed_is_refused(
    name: str, tensor: str, change: Tensor | str | None, words: str, tmp_path: Path
) -> None:
    made = convnet(name, recipe=Recipe(epochs=2, batch=16), ksm_rate=5e-3)
    for task in two()[: 1 if name == "packnet" else 2]:
        made.learn(task)
    made.save(tmp_path / "m")
    tensors, meta = container.load(tmp_path / "m")
    if change is None:
        del tensors[tensor]
    elif change == "soft":
        tensors[tensor] += 0.6
    elif isinstance(change, str):
        tensors[tensor] = torch.full_like(tensors[tensor][:1].repeat(2, 1), 255)
        tensors[tensor][:, -1] >>= -made._elements % 8
    else:
        tensors[tensor] = change
    container.save(tmp_path / "m", tensors, meta)
    with pytest.raises(FileError, match=words):
        grown.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("packnet_prune", 1.0),
        ("packnet_prune", -0.1),
        ("packnet_retrain", float("nan")),
        ("wsn_density", 0.0),
        ("wsn_start", 0.0),
        ("piggyback_rate", 0.0),
        ("piggyback_start", 5e-3),
        ("piggyback_threshold", float("nan")),
        ("ksm_rate", -1.0),
        ("ksm_start", 0.005),
        ("supsup_density", 1.5),
        ("supsup_start", float("inf")),
    ],
)
def test_settings_are_checked(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=setting):
        Config(**{setting: value})  # type: ignore[arg-type]
