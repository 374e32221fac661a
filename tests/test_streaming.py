"""Images that do not fit into memory are fetched when needed, with the same result to the last bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import grown
from grown.bench.resume import data_digests
from grown.config import Recipe
from grown.data import folders, given
from grown.data.normalisation import measure
from grown.data.part import Streamed
from grown.train.batches import Batches
from helpers import make_task, quick
from test_own_data import write_task

RECIPES = {
    "plain": Recipe(epochs=2, batch=16),
    "augmented": Recipe(epochs=3, batch=16, crop=1, flip=True, cutout=2, cutmix=0.4, mixup=0.4, policy="trivial"),
    "zoomed": Recipe(epochs=2, batch=16, zoom=0.4, flip=True, colour=0.3),
    "turned": Recipe(epochs=2, batch=16, crop=1, turns=True, agree=0.1),
}


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[grown.Task, grown.Task]:
    """The same folder's task in memory, and in a mapped file."""
    write_task(tmp_path, make_task("a", each=110), ("train",))
    resident = grown.data.folder_stream(tmp_path)[0]
    monkeypatch.setattr(folders, "RESIDENT_BYTES", 0)
    streamed = grown.data.folder_stream(tmp_path)[0]
    assert isinstance(streamed.train, Streamed)
    assert resident.train.resident
    return resident, streamed


def learned(tasks: list[grown.Task], recipe: Recipe, path: Path) -> bytes:
    torch.manual_seed(0)
    learner = grown.Learner(grown.models.convnet(), quick(recipe=recipe, target=100.0, expansions=1))
    for each in tasks:
        learner.learn(each)
    learner.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_streamed_task_is_learned_to_the_last_bit_as_in_memory(
    name: str, both: tuple[grown.Task, grown.Task], tmp_path: Path
) -> None:
    found = [learned([one], RECIPES[name], tmp_path / "m") for one in both]
    assert found[0] == found[1]


def test_what_is_read_of_it_is_the_same(both: tuple[grown.Task, grown.Task]) -> None:
    resident, streamed = both
    assert data_digests([resident]) == data_digests([streamed])
    assert measure(resident.train) == measure(streamed.train)
    for one, two in zip(resident.hold_out(0.2, 3), streamed.hold_out(0.2, 3), strict=True):
        assert isinstance(two, Streamed)
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.labels, two.labels)
    recipe = RECIPES["augmented"]
    made = [Batches(one.train, measure(one.train), recipe, "cpu", 0) for one in both]
    assert [batches.resident for batches in made] == [True, False]
    for batches in made:
        batches.begin(1)
    for step in range(made[0].steps):
        one, two = (batches.at(step) for batches in made)
        assert torch.equal(one.x, two.x)
        assert torch.equal(one.labels, two.labels)
    assert torch.equal(made[0].whole().x, made[1].whole().x)
    for one, two in zip(made[0].inputs(1), made[1].inputs(1), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("kind", ["bytes", "floats", "features"])
def test_a_dataset_that_is_too_large_is_read_when_needed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_task("a", each=20)
    images = source.train.images if kind == "bytes" else source.train.images / 7
    images = images.flatten(1) if kind == "features" else images
    data = TensorDataset(images, source.train.labels)
    resident = grown.Task("a", train=data, test=data)
    monkeypatch.setattr(given, "RESIDENT_BYTES", 1000)
    streamed = grown.Task("a", train=data, test=data)
    assert isinstance(streamed.train, Streamed)
    assert streamed.input_shape == resident.input_shape
    assert torch.equal(streamed.train.images, resident.train.images)
    if kind == "bytes":
        recipe = RECIPES["augmented"]
        assert learned([resident], recipe, tmp_path / "a") == learned([streamed], recipe, tmp_path / "b")


BOUNDED = """
import resource, sys
import numpy as np, torch
import grown
from grown.data.normalisation import measure
from grown.data.part import Part, Streamed
from grown.data.task import Task
from grown.config import Recipe
from grown.train.batches import Batches
from grown.train.evaluate import evaluate

torch.set_num_threads(1)
count, limit = 60_000, 96 * 2**20
network = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(48, 2))
recipe = Recipe(batch=250, crop=2, flip=True)


def use(part):
    task = Task("t", train=part, test=part)
    fit, held_out = task.hold_out(0.2, 0)
    normalise = measure(fit)
    batches = Batches(fit, normalise, recipe, "cpu", 0)
    batches.begin(1)
    seen = sum(float(network(batches.at(step).x).mean()) for step in range(0, batches.steps, 4))
    seen += sum(float(network(x).mean()) for x in batches.inputs(1))
    return seen + evaluate(network, held_out, normalise, "cpu").loss


labels = torch.arange(count) % 2
with torch.no_grad():
    use(Part(torch.zeros(500, 3, 32, 32, dtype=torch.uint8), labels[:500]))  # libraries take what they need
    images = np.memmap(sys.argv[1], np.uint8, "w+", shape=(count, 3, 32, 32))  # 184 MB, all holes
    images = np.memmap(sys.argv[1], np.uint8, "r", shape=images.shape)
    taken = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (taken + limit, taken + limit))
    use(Streamed(images, labels))
    print("streamed")
    try:
        use(Part(torch.from_numpy(np.array(images)), labels))
    except (MemoryError, RuntimeError):
        print("resident does not fit")
"""


def test_memory_does_not_grow_with_the_images(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BOUNDED, str(tmp_path / "images")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["streamed", "resident does not fit"], done.stderr
    assert np.memmap(tmp_path / "images", np.uint8, "r").nbytes == 60_000 * 3072
