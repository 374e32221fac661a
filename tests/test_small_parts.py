"""Settings, metrics, schedules, batches, statistics and budgets."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import grown
from grown import metrics, seeds
from grown.config import Config, Recipe
from grown.data.normalisation import measure
from grown.data.part import Part
from grown.errors import ConfigError
from grown.growth import budget
from grown.models import backbone, convnet
from grown.train.batches import Batches
from grown.train.evaluate import evaluate
from grown.train.schedule import factor
from grown.train.statistics import estimate_statistics
from helpers import make_task, quick


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed_size": 0.0}, "seed_size.*above 0"),
        ({"max_size": 0.2}, "below the seed network"),
        ({"start_size": 0.4}, "start_size"),
        ({"growth": "slimm"}, "Did you mean 'slim'"),
        ({"mask": "soft"}, "hard"),
        ({"holdout": 1.0}, "holdout"),
        ({"threads": 0}, "threads"),
        ({"seed": -1}, "seed"),
        ({"density": 2.0}, "density"),
        ({"select": False, "soft_select": True}, "soft_select"),
        ({"expansions": -1}, "expansions"),
        ({"target": 120}, "0 to 100"),
        ({"step_size": float("nan")}, "step_size"),
    ],
)
def test_settings_say_the_value_and_the_rule(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Config(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("changes", [{"epochs": 0}, {"batch": 1.5}, {"optimizer": "lion"}, {"rate": 0.0}, {"crop": -1}])
def test_recipes_check_themselves(changes: dict) -> None:
    with pytest.raises(ConfigError):
        Recipe(**changes)


def test_settings_survive_json() -> None:
    config = Config(seed_size=0.2, target=81.5, recipe=Recipe(epochs=3), threads=2, density=0.5)
    assert Config.from_json(config.to_json()) == config
    with pytest.raises(ConfigError, match="not ours"):
        Config.from_json({"recipe": {}, "strange": 1})


def test_metrics_by_hand() -> None:
    matrix = [[80.0], [70.0, 90.0], [75.0, 85.0, 60.0]]
    assert metrics.average_accuracy(matrix) == pytest.approx((75 + 85 + 60) / 3)
    assert metrics.forgetting(matrix) == pytest.approx(((80 - 75) + (90 - 85)) / 2)
    assert metrics.backward_transfer(matrix) == pytest.approx(-5.0)
    assert metrics.forward_transfer([75.0, 85.0], [70.0, 86.0]) == pytest.approx(2.0)
    assert metrics.forward_transfer([75.0, 85.0], [70.0, None]) is None
    assert metrics.forgetting([[50.0]]) == 0.0


def test_forgetting_counts_the_best_that_ever_was() -> None:
    assert metrics.forgetting([[50.0], [80.0, 10.0], [60.0, 10.0, 1.0]]) == pytest.approx(10.0)


def test_one_cycle_rises_and_falls() -> None:
    recipe = Recipe(warmup=0.25)
    rates = [factor(recipe, step, 100) for step in range(100)]
    assert rates.index(max(rates)) in (24, 25)
    assert rates[0] < 0.05
    assert rates[-1] < 0.01
    assert all(factor(Recipe(schedule="constant"), step, 10) == 1.0 for step in range(10))
    assert factor(Recipe(schedule="cosine"), 0, 100) > 0.99


def test_batches_cover_the_part_and_repeat_by_seed() -> None:
    part = Part(
        torch.arange(64, dtype=torch.uint8).view(64, 1, 1, 1).expand(64, 1, 4, 4).contiguous(), torch.arange(64)
    )
    normal = measure(part)

    def epoch(seed: int) -> list[int]:
        batches = Batches(part, normal, Recipe(batch=16), "cpu", seed, "t")
        batches.begin(1)
        return [int(label) for step in range(batches.steps) for label in batches.at(step).labels]

    assert sorted(epoch(0)) == list(range(64))
    assert epoch(0) == epoch(0)
    assert epoch(0) != epoch(1)


def test_crops_are_windows_of_the_padded_image_and_flips_are_flips() -> None:
    images = torch.randint(1, 256, (30, 2, 5, 5), dtype=torch.uint8)
    part = Part(images, torch.arange(30))
    plain = measure(part)
    batches = Batches(part, plain, Recipe(batch=30, crop=1, flip=True), "cpu", 0)
    seen = set()
    batches.begin(1)
    for step in range(batches.steps):
        batch = batches.at(step)
        for image, label in zip(batch.x, batch.labels, strict=True):
            padded = nn.functional.pad(images[label], (1, 1, 1, 1))
            windows = {
                (i, j, flip): plain(w.unsqueeze(0))[0]
                for i in range(3)
                for j in range(3)
                for flip in (False, True)
                for w in [padded[:, i : i + 5, j : j + 5].flip(2) if flip else padded[:, i : i + 5, j : j + 5]]
            }
            found = [key for key, window in windows.items() if torch.equal(window, image)]
            assert found
            seen.add(found[0])
    assert len(seen) > 6


def test_statistics_are_a_plain_average_over_batches() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2), nn.BatchNorm1d(2)).eval()
    batches = [torch.randn(20, 3) * 3 + 5 for _ in range(4)]
    estimate_statistics(network, batches)
    first = network[0]
    assert torch.allclose(first.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0), atol=1e-5)
    assert torch.allclose(first.running_var, torch.stack([b.var(0) for b in batches]).mean(0), atol=1e-4)
    assert first.momentum == 0.1
    assert not network.training


def test_evaluation_lets_cudnn_time_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noting(nn.Flatten):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            asked.append(torch.backends.cudnn.benchmark)
            return super().forward(x)[:, :3]

    asked: list[bool] = []
    part = make_task("a", classes=3).test
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)  # as it is amid a training
    evaluate(Noting(), part, measure(part), "cpu")
    assert asked == [False]
    assert torch.backends.cudnn.benchmark
    with pytest.raises(RuntimeError, match="shapes"):
        evaluate(nn.Linear(999, 3), part, measure(part), "cpu")
    assert torch.backends.cudnn.benchmark


def test_seeds_depend_on_their_purpose_alone() -> None:
    assert seeds.derive(1, "a", 2) == seeds.derive(1, "a", 2)
    assert len({seeds.derive(s, p) for s in range(20) for p in "abc"}) == 60


@pytest.mark.parametrize("name", ["convnet", "lenet", "vgg16-bn-pool", "resnet18"])
@pytest.mark.parametrize("size", [0.05, 0.3, 1.0, 1.5])
def test_the_widest_network_within_a_size(name: str, size: float) -> None:
    learner = grown.Learner(backbone(name), quick(seed_size=2.0, max_size=4.0), input_shape=(3, 32, 32))
    limit = size * learner.base_parameters
    widths = budget.widths_within(learner.channels, learner.banks, limit)
    found = budget.parameters(learner.banks, widths)
    assert found <= limit
    assert found > 0.75 * limit
    if size == 1.0:
        assert widths == learner.channels.template_widths()


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0.3, (3, 20, 50, 258, 161)),  # convolutions stay whole
        (0.03, "even"),  # linear layers would be left less than a twentieth
        (1.0, (3, 20, 50, 800, 500)),
        (1.3, "even"),
    ],
)
def test_linear_layers_may_become_narrower_first(size: float, expected: tuple[int, ...] | str) -> None:
    learner = grown.Learner(backbone("lenet"), quick(), input_shape=(3, 32, 32))
    within = partial(budget.widths_within, learner.channels, learner.banks, size * learner.base_parameters)
    assert within("hidden") == (within("even") if expected == "even" else expected)
    # A network without hidden linear layers has one shape.
    learner = grown.Learner(backbone("resnet18"), quick(), input_shape=(3, 32, 32))
    within = partial(budget.widths_within, learner.channels, learner.banks, size * learner.base_parameters)
    assert within("hidden") == within("even")


def test_what_is_added_then_keeps_the_shape_of_what_is_there() -> None:
    narrow = grown.Learner(
        backbone("lenet"), quick(shape="hidden", seed_size=0.5, start_size=0.25), input_shape=(3, 32, 32)
    )
    stage = narrow.open(make_task("t", shape=(32, 32, 3)))
    started, offered = narrow.seed_widths(), stage.network.widths
    assert started[:3] == (3, 20, 50)
    assert [wide / width for wide, width in zip(offered[1:], started[1:], strict=True)] == pytest.approx(
        [2**0.5] * 4, rel=0.03
    )


def test_a_budget_below_the_smallest_network_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="below the smallest network"):
        grown.Learner(convnet(), quick(seed_size=1e-5), input_shape=(1, 8, 8))
    learner = grown.Learner(convnet(), quick(seed_size=1e-5))
    with pytest.raises(ConfigError, match="below the smallest network"):
        learner.learn(make_task("t"))


def test_candidates_fit_the_room_that_is_left() -> None:
    learner = grown.Learner(convnet(), quick(), input_shape=(1, 8, 8))
    here = learner.seed_widths()
    before = budget.parameters(learner.banks, here)
    for room in (0, 10, 500, 5000):
        wide = budget.widths_with_candidates(learner.channels, learner.banks, here, here, room)
        if wide is None:
            assert room < 500
        else:
            assert 0 < budget.parameters(learner.banks, wide) - before <= room


def test_new_kernels_are_drawn_as_the_templates_were() -> None:
    torch.manual_seed(0)
    template = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 2)
    )
    nn.init.normal_(template[3].weight, 0.0, 0.01)
    learner = grown.Learner(template, quick(seed_size=1.0, start_size=0.25), input_shape=(1, 8, 8))
    stage = learner.open(make_task("t"))
    layer = stage.network.masked()["3"]
    inputs = layer.kernels().shape[1]
    assert float(layer.kernels().std()) == pytest.approx(0.01 * (400 / inputs) ** 0.5, rel=0.15)
