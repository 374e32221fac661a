"""CPG as a whole: its files, what it starts from and goes on from, every backbone, and what it refuses."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import grown
from grown import seeds
from grown.bench.presets import benchmark
from grown.bench.request import Request, configure
from grown.config import Config, Recipe
from grown.data.normalisation import measure
from grown.errors import ConfigError, FileError, TaskError
from grown.io import container, journal
from grown.methods.cpg import CPG, schedule
from grown.methods.verify import verify
from grown.models import backbone
from grown.nn import bits
from grown.train.evaluate import evaluate
from helpers import assert_same_state, goes_on_from_its_file, make_task, quick, stopped_and_resumed
from test_cpg import FAST, elements_of, made, tasks


def unpacked(planes: Tensor, count: int) -> np.ndarray:
    """Numbers out of bit planes, by another way than the library's."""
    flags = [np.unpackbits(plane.numpy(), bitorder="little")[:count].astype(np.int64) for plane in planes]
    return sum(flags[bit] << bit for bit in range(len(flags)))  # type: ignore[return-value]


def test_a_file_holds_what_the_networks_are_made_of(tmp_path: Path) -> None:
    learner = made(cpg_train_goal=0.0, cpg_tasks=4, recipe=Recipe(epochs=6, batch=16, rate=0.05))
    for number, task in enumerate(tasks(3, noise=60.0)):
        report = learner.learn(task)
        assert report.grew == (number in (0, 1))
        learner.configure(learner.config.replace(target=100.0, margin=-1.0))  # never met: the second task widens
    learner.save(tmp_path / "m")
    tensors, meta = container.load(tmp_path / "m")
    seen = [entry["widths"] for entry in meta["tasks"]]
    assert seen[0] < seen[1] == seen[2]
    place = dict.fromkeys(range(1, 4), 0)  # how far the tasks' picked bits are read
    fractions = []
    for layer, inputs in (("0", 0), ("4", 1), ("7", 2)):  # in the order of the network
        out, into = seen[2][inputs + 1], seen[2][inputs]
        owners = unpacked(tensors[f"bank/{layer}/owners"], out * into * 9).reshape(out, into, 3, 3)
        assert {1, 2, 3} <= set(np.unique(owners)) <= {0, 1, 2, 3}
        weights = np.zeros(owners.shape, np.float32)
        weights[owners > 0] = tensors[f"bank/{layer}/kernels"].numpy()
        for number in (1, 2, 3):
            high, wide = seen[number - 1][inputs + 1], seen[number - 1][inputs]
            mine, there = owners[:high, :wide], weights[:high, :wide]
            earlier = (mine > 0) & (mine < number)
            flags = np.unpackbits(tensors[f"task/{number}/picked"].numpy(), bitorder="little")
            used = mine == number
            used[earlier] = flags[place[number] : place[number] + earlier.sum()].astype(bool)
            place[number] += int(earlier.sum())
            fractions += [used[earlier].mean()] if earlier.any() else []
            network = learner.network(f"t{number - 1}").state_dict()
            assert np.array_equal(network[f"{layer}.weight"].numpy(), there * used)
            assert (owners == number).sum() == (mine == number).sum()
    assert 0 < min(fractions) < max(fractions) <= 1
    # t0 met its goal at every level, up to 0.9 of the 54, 648 and 2592 weights that its layers had
    assert [int((learner.elements.owners(layer) == 1).sum()) for layer in "047"] == [5, 65, 259]
    assert report.new_kernels["grown"] == 0
    assert report.new_kernels["released"] == sum(
        (learner.elements.owners(n) == 3).sum() for n in learner.elements.banks
    )
    # as CPG counts: every weight of the widened network
    weights = 9 * sum(a * b for a, b in zip(seen[2][:-1], seen[2][1:], strict=True))
    assert learner.size().size_x == weights / learner.base_parameters
    assert 4 * sum(len(tensors[f"bank/{n}/kernels"]) for n in "047") == learner.size().bytes["kernels"]
    assert verify(tmp_path / "m").exact == ["t0", "t1", "t2"]


def test_a_task_starts_from_all_that_is_there_and_zeros() -> None:
    learner = made(target=100.0, margin=-1.0, cpg_tasks=2)
    first, second = tasks(2)
    learner._check([first])
    start = learner.open(first, learner.widening_plan()[0])
    torch.manual_seed(0)
    scratch = grown.METHODS["scratch"](grown.models.convnet(width=0.25), quick(), input_shape=(1, 8, 8))
    seed = seeds.derive(0, "plain", "t0")
    theirs = scratch.training.fresh(first, seed).state_dict()
    assert all(torch.equal(start.values[name], theirs[f"{name}.weight"]) for name in start.values)
    learner.learn(first)
    widths = tuple(width + 2 * (group > 0) for group, width in enumerate(learner.elements.widths))
    draft = learner.open(second, widths)
    old = learner.network("t0").state_dict()
    for name, values in draft.values.items():
        before = old[f"{name}.weight"]
        inside = values[: before.shape[0], : before.shape[1]]
        assert torch.equal(inside, before)  # owned, or pruned and so 0
        assert bool((values[before.shape[0] :] != 0).all())
        assert torch.equal(draft.picked[name], draft.earlier[name])
        assert torch.equal(draft.own[name], ~draft.earlier[name])
    assert torch.equal(draft.rest["1.running_mean"][:-2], old["1.running_mean"])
    assert torch.equal(draft.rest["1.running_var"][-2:], torch.ones(2))


def test_a_goal_can_be_scratchs() -> None:
    task, config = make_task("t0", noise=60.0), quick(target="scratch", cpg_train_goal=0.0, **FAST)
    found = []
    for name in ("cpg", "scratch"):
        torch.manual_seed(0)
        learner = grown.METHODS[name](grown.models.convnet(width=0.25), config)
        found.append(learner.learn(task))
    assert found[0].target == found[1].val
    assert found[0].stages[0].name == "pick"
    assert found[0].stages[-1].name == "retrain"


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_a_file_goes_on_as_if_it_had_never_been_one(kind: str, tmp_path: Path) -> None:
    whole = made(refit=True, decide=0.5, kernel_format=kind, target=100.0)
    stream = [make_task(f"t{number}", classes=2 + number, seed=number, noise=90.0) for number in range(3)]
    whole.foresee(stream)
    report = goes_on_from_its_file(whole, stream, tmp_path, foresee=True)
    last, retrained = report.stages[-1], report.stages[-2]
    assert (last.name, last.epochs, last.val) == ("refit", 4, None)
    assert retrained.name == "retrain"
    assert whole.normalisation("t2") == measure(stream[2].train)
    stored = container.load(tmp_path / "2")[0]["bank/0/kernels"].dtype
    assert stored == {"fp32": torch.float32, "bf16": torch.bfloat16}[kind]


def test_the_test_images_are_never_read() -> None:
    task = make_task("t0")
    object.__setattr__(task, "test", None)
    assert made().learn(task).name == "t0"


@pytest.mark.parametrize("stage", ["pick", "prune", "retrain", "refit"])
def test_a_task_that_was_stopped_goes_on_from_an_epoch(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)  # every epoch is kept
    stream = tasks(2, noise=90.0)
    settings = {"refit": stage == "refit", "cpg_retrain_epochs": 1.0, "cpg_patience": 2}
    whole, halted = made(**settings), made(**settings)
    for learner in (whole, halted):
        learner.learn(stream[0])
    whole.learn(stream[1])
    halted.save(tmp_path / "m")
    seen: list[tuple[str, int, int]] = []

    def tell(event: dict[str, Any]) -> bool:
        seen.append((event["stage"], event["round"], event["epoch"]))
        return event["stage"] == stage and event["epoch"] == 2

    again = stopped_and_resumed(halted, tmp_path / "m", stream[1], tmp_path / "journal", tell)
    assert len(set(seen)) == len(seen)  # no epoch was trained twice
    assert_same_state(again, whole)


@pytest.mark.parametrize("name", ["lenet", "resnet18", "vgg16-bn", "vgg16-bn-pool"])
def test_every_backbone_learns_two_tasks_and_forgets_nothing(name: str) -> None:
    torch.manual_seed(0)
    config = {**FAST, "cpg_prune_step": 0.9, "cpg_train_goal": 0.0}
    recipe = Recipe(epochs=1, batch=8, turns=name == "resnet18")
    learner = CPG(backbone(name, width=0.05), quick(recipe=recipe, **config))
    x, known = torch.randn(3, 3, 32, 32), {}
    for number in range(2):
        task = make_task(f"t{number}", classes=2 + number, shape=(32, 32, 3), each=8)
        learner.learn(task)
        known[task.name] = learner.network(task.name)(x)
        assert known[task.name].shape == (3, 2 + number)
        assert all(torch.equal(learner.network(task)(x), logits) for task, logits in known.items())
        learner.configure(learner.config.replace(target=100.0, margin=-1.0))  # so that the second task widens


def test_it_learns_a_stream_in_little_room() -> None:
    learner = made(grown.models.convnet(), target=90.0, max_size=1.0, recipe=Recipe(epochs=8, batch=16, rate=0.1))
    stream = tasks(4, each=24)
    learner.foresee(stream)
    for task in stream:
        learner.learn(task)
    for task in stream:
        assert evaluate(learner.network(task.name), task.test, learner.normalisation(task.name), "cpu").accuracy > 80
    assert learner.size().size_x == 1.0


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cpg_train_goal", 101.0),
        ("cpg_step", 0.0),
        ("cpg_tasks", 0),
        ("cpg_pick_start", 0.0),
        ("cpg_pick_rate", -1.0),
        ("cpg_repick_rate", float("nan")),
        ("cpg_prune_step", 0.0),
        ("cpg_prune_most", 1.0),
        ("cpg_prune_epochs", -0.1),
        ("cpg_prune_ramp", 1.5),
        ("cpg_prune_rate", 0.0),
        ("cpg_retrain_epochs", float("nan")),
        ("cpg_patience", 0),
    ],
)
def test_settings_are_checked(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=setting):
        Config(**{setting: value})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    learner = made(recipe=Recipe(epochs=1, batch=16), cpg_train_goal=0.0)
    for task in tasks(2):
        learner.learn(task)
        learner.configure(learner.config.replace(target=100.0, margin=-1.0))  # the second widens
    path = tmp_path_factory.mktemp("cpg") / "m"
    learner.save(path)
    return path


def forged(tensors: dict[str, Tensor], meta: dict[str, Any], what: str) -> None:
    first, second = meta["tasks"]
    if what == "widths fall":
        first["widths"], second["widths"] = second["widths"], first["widths"]
    elif what == "narrow":
        second["widths"][3] -= 1
    elif what == "outside":
        planes = tensors["bank/7/owners"]
        count = second["widths"][2] * second["widths"][3] * 9
        owners = torch.from_numpy(unpacked(planes, count))
        owners[(owners == 2).nonzero()[-1]] = 1
        tensors["bank/7/owners"] = bits.pack_numbers(owners)
    elif what == "stranger":
        tensors["bank/0/owners"] = torch.cat([tensors["bank/0/owners"], tensors["bank/0/owners"][:1]])
    elif what == "nobody":
        tensors["bank/0/owners"] = tensors["bank/0/owners"][:0]
        tensors["bank/0/kernels"] = torch.zeros(0)
    elif what == "numbers":
        second["number"] = 3
    else:
        name, _, change = what.partition("=")
        tensors[name] = {"less": tensors[name][:-1], "more": torch.cat([tensors[name], tensors[name][:1]])}[change]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("widths fall", "a task sees"),
        ("narrow", "does not go with|a task sees"),
        ("outside", "'t0' owns weights outside the channels"),
        ("stranger", "a weight's owner is task|weights have an owner"),
        ("nobody", "nobody owns a weight"),
        ("numbers", "number"),
        ("bank/0/kernels=less", "weights have an owner, but"),
        ("task/2/picked=more", "bits need"),
        ("task/1/own=less", "needs .* floats"),
        ("task/2/probe=less", "does not go with"),
    ],
)
def test_what_a_stranger_changed_is_refused(what: str, words: str, model: Path, tmp_path: Path) -> None:
    tensors, meta = container.load(model)
    forged(tensors, meta, what)
    container.save(tmp_path / "m", tensors, meta)
    with pytest.raises(FileError, match=words) as said:
        grown.load(tmp_path / "m")
    assert "\n" not in str(said.value)


def test_weights_have_one_owner_and_channels_are_only_appended() -> None:
    elements = elements_of(grown.models.convnet(width=0.25), (1, 8, 8))
    wide = elements.channels.template_widths()
    elements.grow(wide)
    which = torch.zeros(elements.shape("0", wide), dtype=torch.bool)
    which[0] = True
    elements.claim("0", torch.ones(which.shape), which, 1)
    with pytest.raises(ValueError, match="claimed again"):
        elements.claim("0", torch.ones(which.shape), which, 2)
    with pytest.raises(ValueError, match="cannot own"):
        elements.claim("0", torch.ones(which.shape), ~which, 256)
    with pytest.raises(ValueError, match="only ever appended"):
        elements.grow(tuple(width - (number > 0) for number, width in enumerate(wide)))


def test_there_is_a_last_task() -> None:
    learner = made()
    learner.learn(make_task("t0"))
    for number in range(254):
        learner._records[f"more{number}"] = learner._records["t0"]
    with pytest.raises(TaskError, match="at most 255"):
        learner.learn(make_task("t1"))


def test_the_pages_commands_are_the_published_schedule() -> None:
    page = (Path(__file__).parent.parent / "docs" / "methods" / "cpg.md").read_text()
    commands = [line for line in page.replace("\\\n", " ").splitlines() if line.startswith("grown run")]
    assert len(commands) == 2
    for command, base in zip(commands, (33_584_832, 14_710_464), strict=True):
        words = shlex.split(command)
        options = dict(zip(words[3::2], words[4::2], strict=True))
        settings = tuple(value for option, value in pairwise(words) if option == "--set")
        request = Request(
            benchmark=words[2],
            backbone=options["--backbone"],
            recipe=options["--recipe"],
            target=options["--target"],
            settings=settings,
        )
        config = configure(request, benchmark("cifar100-superclass"))
        assert (config.recipe.epochs, config.recipe.rate, config.recipe.schedule) == (100, 0.01, "steps")
        assert (config.target, config.margin, config.refit, config.decide) == ("best", 0, False, 1.0)
        with torch.device("meta"):
            elements = elements_of(backbone(options["--backbone"]), (3, 32, 32))
        template = elements.channels.template_widths()
        assert elements.count(template) == base
        plan = schedule.widening_plan(elements, config, 33_584_832)
        assert plan == [template, (3, *(int(width * 1.5**0.5) for width in template[1:]))]
