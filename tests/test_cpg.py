"""CPG: each of its steps beside a computation by hand, its decisions beside made-up scores, and the whole of it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.bench.presets import recipe
from grown.config import Config, Recipe
from grown.data.normalisation import measure
from grown.methods.cpg import CPG, algorithm, schedule
from grown.methods.cpg import draft as drafts
from grown.methods.cpg.best import Best
from grown.methods.cpg.draft import Draft
from grown.methods.cpg.elements import Elements
from grown.methods.cpg.layer import ElementLayer
from grown.methods.cpg.stages import Stages
from grown.models import backbone
from grown.nn import trace
from grown.nn.groups import find_channels
from grown.train.batches import Batches
from grown.train.captured import CapturedSteps
from grown.train.loop import fit
from grown.train.schedule import factor
from grown.train.steps import PlainSteps, Work
from helpers import assert_same_update, make_task, quick
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


def test_weights_are_channels_first_in_memory_on_a_cpu() -> None:
    """Those of 1x1 too, where both orders are the same numbers: by their strides PyTorch chooses its kernels."""
    template = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 1, stride=2), nn.Flatten(), nn.Linear(54, 2)
    )
    graph, channels, draft = drawn(template, (1, 7, 7))
    network = drafts.assemble(graph, channels, draft, picking=True, start_at=0.005)
    convolutions = [layer.effective(None) for layer in list(drafts.layers(network).values())[:2]]
    assert [weight.stride() for weight in convolutions] == [(9, 9, 3, 1), (4, 1, 1, 1)]


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
    decaying = Recipe(epochs=100, schedule="decay")  # what masks follow is theirs, whatever the weights follow
    assert [factor(decaying, epoch, 100, "picks") for epoch in (0, 60, 80)] == [1.0, 0.2, 0.0]
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
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("pruning", [False, True])
def test_captured_steps_on_a_gpu_train_as_plain_ones_do(pruning: bool) -> None:
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
    assert_same_update(*found)
