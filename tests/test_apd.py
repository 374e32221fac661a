"""APD: the parts of each weight, beside loops and searches over what they should be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import grown
import helpers
from grown.config import Config, Recipe
from grown.errors import ConfigError, FileError
from grown.io import container
from grown.methods import method
from grown.methods.apd import APD
from grown.methods.apd.consolidation import cluster, consolidate
from grown.methods.apd.decomposition import Adaptive, Decomposition
from grown.methods.apd.earlier import Earlier, best_tau
from grown.methods.apd.sparse import Sparse
from grown.methods.verify import verify
from helpers import Branchy, make_task, quick

learned: Callable[..., APD] = partial(helpers.learned, "apd")


# --- earlier tasks ------------------------------------------------------------------------------------------------


def test_the_best_tau_is_the_best_of_many() -> None:
    sparsity, drift = 0.3, 2.0
    grid = torch.linspace(-2, 2, 40_001)
    for rest in (-1.3, -0.5, 0.0, 0.05, 0.4, 1.0):
        by_search = float(grid[(sparsity * grid.abs() + drift * (grid - rest) ** 2).argmin()])
        kept = by_search if abs(by_search) > sparsity else 0.0  # cut at the strength, as published
        assert float(best_tau(torch.tensor(rest), sparsity, drift)) == pytest.approx(kept, abs=1e-3)


def test_the_penalty_on_earlier_tasks_is_the_papers_at_the_best_tau() -> None:
    """Its value, and its slopes for the shared weights and masks, by loops over all weights."""
    sparsity, drift = 0.2, 3.0
    kernel = nn.Parameter(torch.randn(2, 3, dtype=torch.float64))
    masks = [{"w": torch.randn(2, dtype=torch.float64)} for _ in range(2)]
    theta = [{"w": torch.randn(2, 3, dtype=torch.float64)} for _ in range(2)]
    earlier = Earlier(masks, theta, {"w": kernel})
    found = earlier.penalty(sparsity, drift)
    found.backward()
    total, slope = 0.0, np.zeros((2, 3))
    for task, out, column in itertools.product(range(2), range(2), range(3)):
        gate = 1 / (1 + np.exp(-float(masks[task]["w"][out])))
        rest = float(theta[task]["w"][out, column]) - gate * float(kernel.detach()[out, column])
        grid = np.append(np.linspace(rest - 0.2, rest + 0.2, 20_001), 0.0)
        tau = grid[(sparsity * np.abs(grid) + drift * (grid - rest) ** 2).argmin()]
        total += sparsity * abs(tau) + drift * (tau - rest) ** 2
        slope[out, column] -= 2 * drift * (rest - tau) * gate
    assert float(found.detach()) == pytest.approx(total, rel=1e-4)
    assert np.allclose(kernel.grad.numpy(), slope, atol=1e-3)
    assert all(v.grad is not None and bool(v.grad.any()) for v in earlier.masks.parameters())


def test_a_mask_and_what_is_left_belong_to_one_task() -> None:
    masks = [{"w": torch.tensor([float(number)])} for number in range(3)]
    earlier = Earlier(masks, [{"w": torch.zeros(1, 1)}] * 3, {"w": nn.Parameter(torch.ones(1, 1))})
    assert [float(earlier.values(number, ["w"])["w"]) for number in range(3)] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("consolidate_every", [5, 2])
def test_earlier_weights_stay_and_what_is_cut_is_all_that_changes(consolidate_every: int) -> None:
    made = learned(2, recipe=Recipe(epochs=4, batch=16), apd_consolidate=consolidate_every)
    before = {name: made._kernels_of(name) for name in made.tasks}
    shared = made._shared
    made.learn(make_task("t2", seed=2))
    bound = made.config.apd_sparsity * (1 + 1 / (2 * made.config.apd_drift)) + 1e-6
    moved = 0.0
    for name, kernels in before.items():
        for key, kernel in kernels.items():
            assert float((made._kernels_of(name)[key] - kernel).abs().max()) <= bound
            moved = max(moved, float((made._shared[key] - shared[key]).abs().max()))
    assert moved > 50 * bound  # of the shared weights: tau took up what they moved by


class Nested(nn.Module):
    """Its layers do not run in the order in which a plain network lists them: those of blocks come last there."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
        self.next = nn.Conv2d(4, 4, 1)
        self.hidden = nn.Linear(4 * 36, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(self.next(self.block(x)).flatten(1))))


def test_what_is_kept_of_a_training_is_what_was_trained() -> None:
    made: APD = method("apd")(Nested(), quick())
    made._check([make_task("t0")])
    (training,) = made._trainings(make_task("t0"))
    assert next(key for key, _ in training.network.named_parameters() if "original" in key).startswith("next")
    for module in training.network.modules():
        if isinstance(module, Adaptive):
            with torch.no_grad():
                module.tau.normal_()
                module.v.normal_()
    layers = {key: training.network.get_submodule(key.removesuffix(".weight")) for key in made._kernel_shapes}
    trained = {key: layer.weight.detach().clone() for key, layer in layers.items()}
    with torch.no_grad():
        made._round(training, made._guard(training))
    shared, kept = made._settled[id(training)]
    for key, weight in trained.items():
        assert torch.allclose(training.network.get_parameter(key), weight, atol=2 * made.config.apd_sparsity), key
        assert torch.equal(kept.theta(shared, "t0")[key], training.network.get_parameter(key))


# --- consolidation ------------------------------------------------------------------------------------------------


def decomposition(vectors: Tensor) -> Decomposition:
    found = Decomposition({"w": torch.Size([vectors.shape[1]])})
    for number, vector in enumerate(vectors):
        found.tau[f"t{number}"] = Sparse.of(vector, torch.float32)
    return found


def test_what_a_group_has_in_common_is_shared_locally() -> None:
    vectors = torch.tensor(
        [[5.0, 0.0, 1.0, 0.004], [5.01, 0.0, 2.0, 0.0], [-5.0, 0.3, 0.0, 0.0], [-5.0, 0.3, 0.5, 0.0]]
    )
    draw = next(  # a draw whose two starting centres lie in different groups
        seed
        for seed in range(9)
        if set((torch.randperm(4, generator=torch.Generator().manual_seed(seed))[:2] // 2).tolist()) == {0, 1}
    )
    found = consolidate(decomposition(vectors), 2, 0.02, torch.float32, torch.Generator().manual_seed(draw))
    first, second = found.group["t0"], found.group["t2"]
    assert found.group == {"t0": first, "t1": first, "t2": second, "t3": second}
    assert torch.allclose(found.local[first].dense(4), torch.tensor([5.005, 0.0, 0.0, 0.002]))
    assert torch.allclose(found.local[second].dense(4), torch.tensor([-5.0, 0.3, 0.0, 0.0]))
    assert torch.equal(found.tau["t0"].dense(4), torch.tensor([0.0, 0.0, 1.0, 0.0]))
    assert torch.equal(found.tau["t3"].dense(4), torch.tensor([0.0, 0.0, 0.5, 0.0]))
    for number, vector in enumerate(vectors):
        assert float((found.adaptive(f"t{number}") - vector).abs().max()) <= 0.02
    alone = consolidate(decomposition(vectors[:2]), 2, 0.02, torch.float32, torch.Generator())
    assert (alone.group, alone.local) == ({}, [])  # groups of one


def test_clusters_from_inner_products_are_those_of_the_vectors() -> None:
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(12, 5, generator=draw)
    points[6:] += 4.0
    found = cluster(points @ points.T, torch.eye(12)[[0, 7, 3]])
    centres = points[[0, 7, 3]]
    for _ in range(50):
        label = torch.cdist(points, centres).argmin(1)
        centres = torch.stack([points[label == number].mean(0) for number in range(3)])
    assert torch.equal(found, label)


def test_groups_grow_in_number_and_are_in_the_file(tmp_path: Path) -> None:
    made = learned(4, apd_consolidate=2, apd_groups=1, apd_gap=10.0, refit=True)
    entries = made.state().meta["tasks"]
    assert {entry["group"] for entry in entries} <= {None, 1, 2}
    assert any(entry["group"] == 1 for entry in entries)
    made.save(tmp_path / "m")
    assert verify(tmp_path / "m").exact == made.tasks
    loaded = grown.load(tmp_path / "m")
    for learner in (made, loaded):
        learner.learn(make_task("t4", seed=4))
        learner.save(tmp_path / f"{id(learner)}")
    assert (tmp_path / f"{id(made)}").read_bytes() == (tmp_path / f"{id(loaded)}").read_bytes()


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_a_network_is_what_the_file_says(kind: str) -> None:
    """Put together again by hand, of the file's tensors alone."""
    made = learned(3, Branchy(), kernel_format=kind, apd_consolidate=2, apd_sparsity=2e-3)
    state = made.state()
    tensors, weights = state.tensors, sum(shape.numel() for shape in made._kernel_shapes.values())
    for number, entry in enumerate(state.meta["tasks"], start=1):
        parts = [f"task/{number}"] + ([f"local/{entry['group']}"] if entry["group"] else [])
        extra = np.zeros(weights, dtype=np.float32)
        for part in parts:
            places = np.unpackbits(tensors[f"{part}/where"].numpy(), bitorder="little")[:weights].nonzero()[0]
            extra[places] += tensors[f"{part}/kernels"].float().numpy()
        start = unit = 0
        for key, shape in made._kernel_shapes.items():
            count = shape.numel()
            shared = tensors["shared/kernels"].float()[start : start + count].view(shape)
            gate = torch.sigmoid(tensors[f"task/{number}/mask"][unit : unit + shape[0]])
            by_hand = torch.stack([shared[out] * gate[out] for out in range(shape[0])])
            by_hand += torch.from_numpy(extra[start : start + count]).view(shape)
            assert torch.allclose(made.network(entry["name"]).state_dict()[key], by_hand, atol=1e-6)
            start, unit = start + count, unit + shape[0]
    smallest = min(float(tensors[f"task/{number}/kernels"].abs().min()) for number in (1, 2, 3))
    assert smallest > 2e-3 * 0.99
    values = sum(tensor.numel() for name, tensor in tensors.items() if name.endswith("/kernels"))
    assert made.size().size_x == values / weights
    assert 1.0 < made.size().size_x < 4.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task/1/kernels": torch.ones(3)}, "places have a value, but 3"),
        ({"task/1/kernels": "zero"}, "other than 0"),
        ({"task/1/where": torch.zeros(3, dtype=torch.uint8)}, "task/1/where"),
        ({"task/1/mask": torch.zeros(3)}, "needs .* floats"),
        ({"local/1/kernels": torch.ones(1)}, "holds local/1/kernels"),
        ({"group": [1, 1]}, "lacks local/1"),
        ({"group": [1, None]}, "a single task"),
        ({"group": [2, 2]}, "not numbered from 1"),
        ({"group": [3, 3]}, "from 1 to 2"),
    ],
)
def test_what_a_stranger_changed_is_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    made = learned(2, recipe=Recipe(epochs=1, batch=16))
    made.save(tmp_path / "m")
    tensors, meta = container.load(tmp_path / "m")
    for name, value in change.items():
        if name == "group":
            for entry, group in zip(meta["tasks"], value, strict=True):  # type: ignore[call-overload]
                entry["group"] = group
        elif value == "zero":
            tensors[name][0] = 0.0
        else:
            tensors[name] = value  # type: ignore[assignment]
    container.save(tmp_path / "m", tensors, meta)
    with pytest.raises(FileError, match=words):
        grown.load(tmp_path / "m")


# --- the rest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", ["lenet", "vgg16-bn", "resnet18"])
def test_it_runs_on_every_backbone(backbone: str) -> None:
    torch.manual_seed(0)
    made = method("apd")(grown.models.backbone(backbone, 3, 0.1), quick(recipe=Recipe(epochs=1, batch=8)))
    for number in range(2):
        report = made.learn(make_task(f"t{number}", shape=(32, 32, 3), each=6, seed=number))
        assert report.stages[-1].epochs == 1
    assert made.network("t0")(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("apd_sparsity", 0.0),
        ("apd_drift", -1.0),
        ("apd_consolidate", 0),
        ("apd_groups", 1.5),
        ("apd_gap", float("nan")),
    ],
)
def test_settings_are_checked(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=setting):
        Config(**{setting: value})  # type: ignore[arg-type]
