"""CPG: each of its steps beside a computation by hand, its decisions beside made-up scores, and the whole of it."""

from __future__ import annotations

import dataclasses
import shlex
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.bench.presets import benchmark, recipe
from grown.bench.runner import Request, configure
from grown.config import Config, Recipe
from grown.data.task import measure
from grown.errors import ConfigError, FileError, Stopped, TaskError
from grown.io import container, journal
from grown.io.journal import Journal
from grown.methods.cpg import CPG, algorithm, schedule
from grown.methods.cpg import draft as drafts
from grown.methods.cpg.best import Best
from grown.methods.cpg.draft import Draft
from grown.methods.cpg.elements import Elements
from grown.methods.cpg.layer import ElementLayer
from grown.methods.cpg.stages import Stages
from grown.methods.verify import verify
from grown.models import backbone
from grown.nn import trace
from grown.nn.groups import find_channels
from grown.train.batches import Batches
from grown.train.evaluate import evaluate
from grown.train.loop import CapturedSteps, PlainSteps, Work, fit
from grown.train.schedule import factor
from helpers import make_task, quick
from test_loop import Imitated

FAST = {"cpg_prune_step": 0.5, "cpg_prune_most": 0.9, "cpg_prune_epochs": 0.5, "cpg_pick_rate": 0.003}


def made(template: nn.Module | None = None, **changes: Any) -> CPG:
    torch.manual_seed(0)
    how = changes.pop("recipe", None) or Recipe(epochs=4, batch=16, rate=0.05)
    config = quick(recipe=how, **{**FAST, **changes})
    return CPG(template if template is not None else grown.models.convnet(width=0.25), config)


def tasks(count: int, **more: Any) -> list[grown.Task]:
    return [make_task(f"t{number}", seed=number, **more) for number in range(count)]


# --- a layer ------------------------------------------------------------------------------------------------------


class Every(nn.Module):
    """A layer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.depth = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.wide = nn.Conv2d(4, 6, (3, 1), stride=2, padding="valid", dilation=1, bias=False)
        self.hidden = nn.Linear(6 * 16, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.depth(torch.tanh(self.stem(x))))
        return self.out(torch.tanh(self.hidden(torch.tanh(self.wide(x)).flatten(1))))


def drawn(template: nn.Module, shape: tuple[int, ...], seed: int = 0) -> tuple[Any, Any, Draft]:
    """A draft of random weights of which some are an earlier task's."""
    graph = trace.trace(template, shape)
    channels = find_channels(graph)
    draw = torch.Generator().manual_seed(seed)
    elements, widths = Elements(graph, channels), channels.template_widths()
    values, earlier, own = {}, {}, {}
    for name in elements.banks:
        values[name] = torch.randn(elements.shape(name, widths), generator=draw)
        kind = torch.randint(3, values[name].shape, generator=draw)  # an earlier task's, its own, or pruned
        earlier[name], own[name] = kind == 0, kind == 1
    state = template.state_dict()
    rest = {key: value.clone() for key, value in state.items() if key.rpartition(".")[0] not in elements.banks}
    rest |= {f"{name}.bias": state[f"{name}.bias"].clone() for name in elements.banks if f"{name}.bias" in state}
    return graph, channels, Draft(widths, values, earlier, dict(earlier), own, rest)


def test_a_layer_computes_what_its_weights_and_mask_say_and_only_they_learn() -> None:
    torch.manual_seed(0)
    template = Every()
    graph, channels, draft = drawn(template, (1, 9, 8))
    network = drafts.assemble(graph, channels, draft, picking=True, start_at=0.005)
    draw = torch.Generator().manual_seed(1)
    masks = {}
    for name, layer in drafts.layers(network).items():
        assert torch.allclose(layer.scores[layer.is_frozen], torch.tensor(0.005))  # all are picked at first
        layer.scores.data = torch.randn(layer.scores.shape, generator=draw)
        masks[name] = layer.picks()
        assert 0 < int(masks[name].sum()) < masks[name].numel()
    reference = {}
    for name, values in draft.values.items():
        on = (masks[name] & draft.earlier[name]) | draft.own[name]
        weight = template.get_submodule(name).weight
        reference[name] = weight
        weight.data = (values * on).view(weight.shape)
    x, labels = torch.randn(7, 1, 9, 8), torch.arange(7) % 3
    answers = network(x)
    assert torch.allclose(answers, template(x), atol=1e-5)
    F.cross_entropy(answers, labels).backward()
    F.cross_entropy(template(x), labels).backward()
    for name, layer in drafts.layers(network).items():
        slope = reference[name].grad.view(draft.values[name].shape)
        assert torch.allclose(unlaid(layer, layer.weight.grad.squeeze(2)), slope * draft.own[name], atol=1e-6)
        straight = slope * draft.values[name] * draft.earlier[name]  # through the threshold as if it were not there
        assert torch.allclose(unlaid(layer, layer.scores.grad), straight, atol=1e-6)


def unlaid(layer: ElementLayer, values: Tensor) -> Tensor:
    """(out, k x in) as (out, in, k), written out."""
    out, *shape = layer._shape
    if len(shape) == 1 or len(shape) == 2:
        return values.reshape(layer._shape)
    return torch.stack([row.view(shape[1], shape[2], shape[0]).permute(2, 0, 1) for row in values.view(out, -1)])


def test_pruning_keeps_the_largest_in_the_same_memory() -> None:
    graph, channels, draft = drawn(Every(), (1, 9, 8))
    network = drafts.assemble(graph, channels, draft, picking=False, start_at=0.005)
    for name, layer in drafts.layers(network).items():
        assert layer.scores is None
        before = [buffer.data_ptr() for buffer in layer.buffers()]
        count = int(draft.own[name].sum())
        layer.prune(count // 2)
        layer.prune(count // 4)
        assert [buffer.data_ptr() for buffer in layer.buffers()] == before
        sizes = (draft.values[name] * draft.own[name]).abs().flatten()
        largest = sizes.sort(descending=True).values[count // 4 - 1]
        kept = (sizes >= largest).view(draft.own[name].shape)
        values, own = layer.own()
        assert torch.equal(own, kept)
        assert torch.equal(values, draft.values[name] * kept)
        effective = layer.effective(None).detach().view(draft.values[name].shape)
        assert torch.equal(effective, draft.values[name] * (kept | draft.picked[name]))
    assert all(torch.equal(draft.own[name], own) for name, own in drawn(Every(), (1, 9, 8))[2].own.items())
    picking = drafts.assemble(graph, channels, draft, picking=True, start_at=0.005)
    with pytest.raises(ValueError, match="stand still"):
        drafts.layers(picking)["wide"].prune(1)


def test_a_layer_without_anything_in_it_answers_zero() -> None:
    graph, channels, draft = drawn(Every(), (1, 9, 8))
    nothing = torch.zeros_like(draft.own["wide"])
    for part in (draft.own, draft.picked):
        part["wide"] = nothing
    network = drafts.assemble(graph, channels, draft, picking=False, start_at=0.005)
    assert not bool(drafts.layers(network)["wide"].effective(None).any())
    network(torch.randn(2, 1, 9, 8)).sum().backward()
    drafts.layers(network)["wide"].prune(1)


# --- schedules, by hand -------------------------------------------------------------------------------------------


def test_levels_ramp_and_rates_are_the_published_ones() -> None:
    config = Config()
    assert schedule.levels(config) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    assert schedule.levels(config.replace(cpg_prune_step=0.25, cpg_prune_most=0.75)) == pytest.approx([0.25, 0.5, 0.75])
    rising = [schedule.ramp(0.1, 0.2, epoch, 4) for epoch in range(1, 6)]
    assert rising == pytest.approx([0.2 - 0.1 * 27 / 64, 0.2 - 0.1 / 8, 0.2 - 0.1 / 64, 0.2, 0.2])
    assert [schedule.kept(count, 0.95) for count in (0, 1, 40, 1000)] == [0, 1, 2, 50]
    paper = recipe("paper")
    level = schedule.part_of(paper, config.cpg_prune_epochs, config.cpg_prune_rate)
    assert (level.epochs, level.rate, level.schedule) == (20, pytest.approx(1e-3), "constant")
    assert round(config.cpg_prune_ramp * level.epochs) == 4
    assert schedule.part_of(paper, config.cpg_retrain_epochs, config.cpg_prune_rate).epochs == 30
    rates = [5e-4 * factor(paper, epoch, 100, "picks") for epoch in range(100)]
    assert rates == pytest.approx([5e-4] * 50 + [1e-4] * 20 + [0.0] * 30)


@pytest.mark.parametrize("kind", [PlainSteps, Imitated])
def test_scores_follow_their_own_schedule(kind: type[PlainSteps | CapturedSteps]) -> None:
    graph, channels, draft = drawn(Every(), (1, 9, 8))
    task = make_task("t", shape=(9, 8, 1))
    recipe = Recipe(epochs=10, batch=16, rate=0.01, schedule="steps", score_rate=1e-3, precision="fp32")
    network = drafts.assemble(graph, channels, draft, picking=True, start_at=0.005)
    batches = Batches(task.train, measure(task.train), recipe, "cpu", 0)
    steps = kind(Work(network, drafts.groups_of(network), batches, recipe, score_schedule="picks"))
    seen: list[tuple[float, float]] = []
    moved: list[bool] = []
    for epoch in range(1, 11):
        before = {name: layer.scores.clone() for name, layer in drafts.layers(network).items()}
        steps.epoch(epoch)
        seen.append(tuple(float(made.param_groups[0]["lr"]) for made in steps.optimizers))
        moved.append(any(not torch.equal(layer.scores, before[n]) for n, layer in drafts.layers(network).items()))
    weights, scores = zip(*seen, strict=True)
    assert weights == pytest.approx([0.01] * 5 + [0.001] * 3 + [0.0001] * 2)
    assert scores == pytest.approx([1e-3] * 5 + [2e-4] * 2 + [0.0] * 3)
    assert moved == [True] * 7 + [False] * 3


def elements_of(template: nn.Module, shape: tuple[int, ...]) -> Elements:
    graph = trace.trace(template, shape)
    return Elements(graph, find_channels(graph))


def test_widths_grow_by_roots_up_to_the_cap() -> None:
    with torch.device("meta"):
        template = backbone("vgg16-bn")
    graph = trace.trace(template, (3, 32, 32))
    channels = find_channels(graph)
    elements = Elements(graph, channels)
    base = elements.count(channels.template_widths())
    assert base == 33_584_832
    plan = schedule.widening_plan(elements, Config(max_size=1.5), base)
    assert plan[0] == channels.template_widths()
    assert [int(width * 1.5**0.5) for width in plan[0][1:]] == list(plan[1][1:])
    assert len(plan) == 2
    assert 1.48 < elements.count(plan[1]) / base <= 1.5
    sizes = [elements.count(w) / base for w in schedule.widening_plan(elements, Config(max_size=2.2), base)]
    assert sizes == pytest.approx([1.0, 1.5, 2.0, 2.2], abs=0.02)
    assert len(schedule.widening_plan(elements, Config(max_size=1.0), base)) == 1
    (small,) = schedule.widening_plan(elements, Config(max_size=0.5), base)
    assert 0.49 < elements.count(small) / base <= 0.5
    elements.widths = plan[1]
    assert schedule.widening_plan(elements, Config(max_size=1.5), base) == [plan[1]]
    assert schedule.widening_plan(elements, Config(max_size=1.2), base) == [plan[1]]  # never narrower again
    assert schedule.needed(1) == 0.0
    assert schedule.needed(20) == pytest.approx(0.95)


def test_widths_come_in_the_units_that_are_asked_for() -> None:
    graph = trace.trace(grown.models.convnet(), (1, 8, 8))
    elements = Elements(graph, find_channels(graph, 8))
    base = elements.count(elements.channels.template_widths())
    plan = schedule.widening_plan(elements, Config(max_size=2.0), base)
    assert plan == [(1, 24, 48, 96), (1, 24, 56, 112), (1, 32, 64, 128)]


# --- decisions, beside made-up scores -----------------------------------------------------------------------------


class Scripted:
    """Stages that only say what they were asked for, and score as they are told."""

    def __init__(self, config: Config, pick: list[tuple[float, float]], prune: dict[float, float]) -> None:
        self.config, self._picks, self._prunes = config, iter(pick), prune
        self.opened = SimpleNamespace(task=None)
        self.asked: list[Any] = []

    def pick(self, draft: Any, number: int) -> Any:  # noqa: ARG002
        self.asked.append(("pick", draft.widths))
        val, self._train = next(self._picks)
        return SimpleNamespace(draft=draft, val=val)

    def training_accuracy(self, _: Any) -> float:
        return self._train

    def prune(self, draft: Any, counts: dict[str, int], before: float, level: float) -> Any:  # noqa: ARG002
        self.asked.append((round(before, 2), round(level, 2)))
        return SimpleNamespace(draft=draft, val=self._prunes[round(level, 2)])


def picking(pick: list[tuple[float, float]], widths: int = 3) -> tuple[list[Any], bool]:
    config = Config(margin=1.0)
    plan = [(number,) for number in range(1, widths + 1)]
    host = SimpleNamespace(config=config, widening_plan=lambda: plan, open=lambda _, w: SimpleNamespace(widths=w))
    stages = Scripted(config, pick, {})
    settled, is_full = algorithm.pick_and_grow(host, stages, 80.0)  # type: ignore[arg-type]
    assert settled.draft.widths == stages.asked[-1][1]
    return [width for _, (width,) in stages.asked], is_full


def test_a_task_widens_while_the_goal_or_the_training_accuracy_is_missed() -> None:
    assert picking([(79.0, 95.0)]) == ([1], False)
    assert picking([(78.9, 99.0), (79.5, 99.0)]) == ([1, 2], False)
    assert picking([(90.0, 94.9), (79.5, 96.0)]) == ([1, 2], False)
    assert picking([(70.0, 99.0), (70.0, 99.0), (99.0, 99.0)]) == ([1, 2, 3], True)
    assert picking([(70.0, 99.0), (70.0, 99.0), (60.0, 99.0)]) == ([1, 2, 3], True)
    assert picking([(79.0, 95.0)], widths=1) == ([1], True)


def compacting(start: float, prune: dict[float, float], needed: float) -> tuple[list[Any], float]:
    config = Config(cpg_prune_step=0.25, cpg_prune_most=0.95)
    stages = Scripted(config, [], prune)
    draft = SimpleNamespace(own={"a": torch.ones(4, dtype=torch.bool)})
    first = SimpleNamespace(draft=draft, val=start)
    settled = algorithm.compact(stages, first, 80.0, needed)  # type: ignore[arg-type]
    return stages.asked, settled.val


def test_a_task_is_pruned_as_far_as_the_goal_holds_and_as_far_as_others_need_room() -> None:
    falling = {0.25: 85.0, 0.5: 80.0, 0.75: 79.0, 0.95: 90.0}
    steps = [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.95)]
    assert compacting(85.0, falling, 0.0) == (steps[:3], 80.0)  # the level that missed is undone
    assert compacting(79.0, falling, 0.0) == ([], 79.0)
    assert compacting(70.0, {**falling, 0.5: 60.0}, 0.4) == (steps[:2], 60.0)  # room is needed, goal or not
    assert compacting(70.0, falling, 0.5) == (steps[:3], 80.0)  # and further where the goal holds then
    assert compacting(70.0, falling, 0.6) == (steps[:3], 79.0)
    assert compacting(85.0, dict.fromkeys(falling, 99.0), 0.0) == (steps, 99.0)


def test_nothing_of_its_own_is_nothing_to_prune() -> None:
    stages = Scripted(Config(), [], {})
    settled = SimpleNamespace(draft=SimpleNamespace(own={"a": torch.zeros(4, dtype=torch.bool)}), val=90.0)
    assert algorithm.compact(stages, settled, 80.0, 0.9) is settled  # type: ignore[arg-type]
    assert stages.asked == []


def test_how_many_tasks_are_left_is_foreseen_or_set() -> None:
    learner = made(target=0.0)
    assert learner.left() == 2  # nobody said: this one and another
    learner.foresee(tasks(5))
    assert learner.left() == 5
    learner.learn(tasks(1)[0])
    assert learner.left() == 4
    learner.configure(learner.config.replace(cpg_tasks=3))
    assert learner.left() == 2
    learner.configure(learner.config.replace(cpg_tasks=1))
    assert learner.left() == 1


# --- the best epoch -----------------------------------------------------------------------------------------------


def test_the_best_epoch_is_kept_and_patience_ends() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    best = Best(network, patience=2)
    for epoch, accuracy in enumerate((50.0, 70.0, 70.0, 60.0), start=1):
        assert not best.is_over()
        with torch.no_grad():
            network[0].weight.fill_(epoch)
            network[1].running_mean.fill_(epoch)
        best.note(accuracy)
    assert best.is_over()
    best.bring_back()
    assert network[0].weight.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert network[1].running_mean.tolist() == [2.0, 2.0]
    assert int(best.epoch) == 4


def test_a_training_that_is_over_ends() -> None:
    task = make_task("t")
    recipe = Recipe(epochs=9, batch=16)
    network, told = grown.models.convnet(width=0.25, classes=3), []
    work = Work(
        network,
        [{"name": "weights", "params": list(network.parameters())}],
        Batches(task.train, measure(task.train), recipe, "cpu", 0),
        recipe,
        after_epoch=lambda epoch: told.append(epoch.number),
        is_over=lambda: len(told) == 3,
    )
    fit(work)
    assert told == [1, 2, 3]


def test_retraining_keeps_its_best_epoch_and_resets_the_masks() -> None:
    learner = made(cpg_retrain_epochs=2.0, cpg_patience=2, cpg_repick_rate=0.01)
    first, second = tasks(2, noise=110.0)
    learner.learn(first)
    learner._check([second])
    stages = Stages(learner, second)
    draft = learner.open(second, learner.elements.widths)
    nothing = {name: torch.zeros_like(flags) for name, flags in draft.picked.items()}
    seen: list[float] = []
    learner.observer = lambda event: seen.append(event["val"]) if event["event"] == "epoch" else None
    settled = stages.retrain(dataclasses.replace(draft, picked=nothing))
    assert any(bool(flags.any()) for flags in settled.draft.picked.values())
    (report,) = stages.reports
    best = seen.index(max(seen))
    assert report.epochs == len(seen) == min(8, best + 1 + 2)


# --- the whole ----------------------------------------------------------------------------------------------------


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
            bits = np.unpackbits(tensors[f"task/{number}/picked"].numpy(), bitorder="little")
            used = mine == number
            used[earlier] = bits[place[number] : place[number] + earlier.sum()].astype(bool)
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
    seed = grown.seeds.derive(0, "plain", "t0")
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


def test_the_first_training_is_scratchs_and_a_goal_can_be_its() -> None:
    torch.manual_seed(0)
    learner = CPG(grown.models.convnet(width=0.25), quick(target="scratch", cpg_train_goal=0.0, **FAST))
    report = learner.learn(make_task("t0", noise=60.0))
    assert report.stages[0].name == "pick"
    assert report.target is not None
    assert [stage.name for stage in report.stages] == ["pick", "prune", "prune", "retrain"][: len(report.stages)]
    assert learner.targets.reference is not None


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_a_file_goes_on_as_if_it_had_never_been_one(kind: str, tmp_path: Path) -> None:
    whole = made(refit=True, decide=0.5, kernel_format=kind, target=100.0)
    stream = [make_task(f"t{number}", classes=2 + number, seed=number, noise=90.0) for number in range(3)]
    for number, task in enumerate(stream):
        whole.foresee(stream)
        report = whole.learn(task)
        whole.save(tmp_path / f"{number}")
    last, retrained = report.stages[-1], report.stages[-2]
    assert (last.name, last.epochs, last.val) == ("refit", 4, None)
    assert retrained.name == "retrain"
    assert whole.normalisation("t2") == measure(stream[2].train)
    assert verify(tmp_path / "2").exact == ["t0", "t1", "t2"]
    stored = container.load(tmp_path / "2")[0]["bank/0/kernels"].dtype
    assert stored == {"fp32": torch.float32, "bf16": torch.bfloat16}[kind]
    loaded = grown.load(tmp_path / "1")
    loaded.foresee(stream)
    loaded.learn(stream[2])
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "2").read_bytes()


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
    first = Journal(tmp_path / "journal")
    seen: list[tuple[str, int, int]] = []

    def observe(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            seen.append((event["stage"], event["round"], event["epoch"]))
            if event["stage"] == stage and event["epoch"] == 2:
                first.stop_soon()

    halted.observer = observe
    with first.scope("t1"), pytest.raises(Stopped):
        halted.learn(stream[1])
    again = grown.load(tmp_path / "m")
    again.observer = observe
    with Journal(tmp_path / "journal").scope("t1"):
        again.learn(stream[1])
    assert len(set(seen)) == len(seen)  # no epoch was trained twice
    assert again.state().meta == whole.state().meta
    for key, tensor in whole.state().tensors.items():
        assert torch.equal(again.state().tensors[key], tensor), key


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


# --- captured steps -----------------------------------------------------------------------------------------------


def pruning_works(learner: CPG, task: grown.Task, recipe: Recipe) -> tuple[nn.Module, Work]:
    """A level of pruning whose mask changes after each epoch."""
    draft = learner.open(task, learner.elements.widths)
    network = drafts.assemble(learner.graph, learner.training.channels, draft, picking=False, start_at=0.005)
    counts = {name: int(own.sum()) for name, own in draft.own.items()}

    def prune(epoch: int) -> None:
        for name, layer in drafts.layers(network).items():
            layer.prune(schedule.kept(counts[name], 0.2 * epoch))

    prune(1)
    batches = Batches(task.train, measure(task.train), recipe, learner.config.device, 0)
    work = Work(network, drafts.groups_of(network), batches, recipe, after_epoch=lambda epoch: prune(epoch.number + 1))
    return network, work


def test_a_captured_step_sees_the_mask_of_each_epoch() -> None:
    learner, (first, second) = made(), tasks(2)
    learner.learn(first)
    recipe = Recipe(epochs=3, batch=8, rate=0.01, precision="fp32")
    found = []
    for kind in (PlainSteps, Imitated):
        network, work = pruning_works(learner, second, recipe)
        steps = kind(work)
        network.train()
        for epoch in range(1, 4):
            steps.epoch(epoch)
            work.after_epoch(SimpleNamespace(number=epoch))  # type: ignore[misc, arg-type]
        steps.finish()
        found.append(network.state_dict())
    for key, value in found[0].items():
        assert torch.allclose(found[1][key].float(), value.float(), atol=1e-5), key


@pytest.mark.gpu
@pytest.mark.parametrize("pruning", [False, True])
def test_captured_steps_on_a_gpu_train_as_plain_ones_do(pruning: bool) -> None:
    torch.backends.cudnn.allow_tf32 = False
    recipe = Recipe(epochs=3, batch=8, rate=1e-3, score_rate=1e-7, precision="fp32")
    learner = made(backbone("vgg16-bn", width=0.125), device="cuda", recipe=Recipe(epochs=1, batch=8))
    first, second = (make_task(f"t{n}", shape=(32, 32, 3), seed=n) for n in range(2))
    learner.learn(first)
    found = []
    for capture in (False, True):
        if pruning:
            network, work = pruning_works(learner, second, recipe)
        else:
            draft = learner.open(second, learner.elements.widths)
            network = drafts.assemble(learner.graph, learner.training.channels, draft, picking=True, start_at=0.005)
            batches = Batches(second.train, measure(second.train), recipe, "cuda", 0)
            work = Work(network, drafts.groups_of(network), batches, recipe, score_schedule="picks")
        fit(work, capture=capture)
        found.append({key: value.float().cpu() for key, value in network.state_dict().items()})
    for key, value in found[0].items():
        assert float((found[1][key] - value).norm()) <= 1e-2 * (1e-3 + float(value.norm())), key


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
        tensors["bank/7/owners"] = grown.nn.bits.pack_numbers(owners)
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
        assert (config.target, config.margin, config.refit, config.deciding) == ("best", 0, False, config.recipe)
        with torch.device("meta"):
            elements = elements_of(backbone(options["--backbone"]), (3, 32, 32))
        template = elements.channels.template_widths()
        assert elements.count(template) == base
        plan = schedule.widening_plan(elements, config, 33_584_832)
        assert plan == [template, (3, *(int(width * 1.5**0.5) for width in template[1:]))]
