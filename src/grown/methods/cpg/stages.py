"""The trainings that a task goes through: picking, each level of pruning, retraining; and what each ends with."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from grown import seeds
from grown.config import Recipe
from grown.data.normalisation import Normalisation, measure
from grown.data.part import Part
from grown.data.task import Task
from grown.methods.base import StageReport, parts_of
from grown.methods.cpg import draft as drafts
from grown.methods.cpg import schedule
from grown.methods.cpg.best import NAME, Best
from grown.methods.cpg.draft import Draft
from grown.train.batches import Batches
from grown.train.evaluate import evaluate
from grown.train.loop import fit
from grown.train.statistics import estimate_statistics
from grown.train.steps import Epoch, Work
from grown.train.turns import TurnedHead

if TYPE_CHECKING:
    from grown.methods.cpg.method import CPG


@dataclass(frozen=True)
class Opened:
    """A task that is being learned: what trains, what decides, what its inputs go through."""

    task: Task
    fit: Part
    held_out: Part
    normalise: Normalisation


@dataclass(frozen=True)
class Plan:
    """One training: what it is called, how it goes, and what happens between its epochs."""

    name: str
    round: int
    recipe: Recipe
    picking: bool  # masks are learned, from their start; otherwise the picks stand still
    score_schedule: str | None = None
    keep_best: bool = False  # the best epoch counts, and it ends once there was none for a while
    prepare: Callable[[nn.Module, int], None] | None = None  # before each epoch, the network for it


@dataclass(frozen=True)
class Settled:
    """What a training came to: the draft, and the plain network that it stands for, scored on held-out images."""

    draft: Draft
    network: nn.Module  # on the device
    val: float


class Stages:
    """One task's trainings, in their order."""

    def __init__(self, method: CPG, task: Task) -> None:
        self.method = method
        self.config = method.config
        self._number = len(method.records) + 1
        part, held_out = parts_of(task, self.config)
        self.opened = Opened(task, part, held_out, measure(part))
        self.reports: list[StageReport] = []

    @property
    def _deciding(self) -> Recipe:
        return self.config.deciding(self._number)

    def pick(self, draft: Draft, number: int) -> Settled:
        """Pick from earlier tasks' weights while all free ones train."""
        recipe = dataclasses.replace(self._deciding, score_rate=self.config.cpg_pick_rate)
        return self._train(Plan("pick", number, recipe, picking=True, score_schedule="picks"), draft)

    def prune(self, draft: Draft, counts: dict[str, int], before: float, level: float) -> Settled:
        """Prune the task's own weights (so many they were by layer) from one share to the next; the picks stay."""
        config = self.config
        recipe = schedule.part_of(self._deciding, config.cpg_prune_epochs, config.cpg_prune_rate)
        rising = max(1, round(config.cpg_prune_ramp * recipe.epochs))

        def prepare(network: nn.Module, epoch: int) -> None:
            if epoch <= rising:
                share = schedule.ramp(before, level, epoch, rising)
                for name, layer in drafts.layers(network).items():
                    layer.prune(schedule.kept(counts[name], share))

        return self._train(Plan("prune", round(100 * level), recipe, picking=False, prepare=prepare), draft)

    def retrain(self, draft: Draft) -> Settled:
        """Pick anew among all earlier weights and train what was not pruned; the best epoch counts."""
        config = self.config
        recipe = schedule.part_of(self._deciding, config.cpg_retrain_epochs, config.cpg_prune_rate)
        recipe = dataclasses.replace(recipe, score_rate=config.cpg_repick_rate)
        return self._train(Plan("retrain", 0, recipe, picking=True, keep_best=True), draft)

    def refit(self, draft: Draft) -> Settled:
        """All is decided: pick and train the weights that are left on all data, by the whole recipe."""
        config, task = self.config, self.opened.task
        self.opened = dataclasses.replace(self.opened, fit=task.train, normalise=measure(task.train))
        recipe = dataclasses.replace(config.recipe_of(self._number), score_rate=config.cpg_pick_rate)
        return self._train(Plan("refit", 0, recipe, picking=True, score_schedule="picks"), draft)

    def training_accuracy(self, settled: Settled) -> float:
        """On the images that trained, as they are."""
        return evaluate(settled.network, self.opened.fit, self.opened.normalise, self.config.device).accuracy

    def _train(self, plan: Plan, draft: Draft) -> Settled:
        """One training of a draft."""
        began, method, config, opened = time.perf_counter(), self.method, self.config, self.opened
        where = {"task": opened.task.name, "stage": plan.name, "round": plan.round}
        method.emit("stage", **where, epochs=plan.recipe.epochs)
        network = drafts.assemble(
            method.graph, method.training.channels, draft, picking=plan.picking, start_at=config.cpg_pick_start
        )
        purpose = (opened.task.name, self.method.name, plan.name, plan.round)
        batches = Batches(opened.fit, opened.normalise, plan.recipe, config.device, config.seed, *purpose)
        epochs = self._fit(plan, network, batches, purpose)
        settled = self._settle(drafts.read_back(network, draft, picking=plan.picking), batches)
        seconds = time.perf_counter() - began
        val = None if plan.name == "refit" else settled.val
        self.reports.append(StageReport(plan.name, epochs, val, seconds))
        method.emit("settled", **where, val=val, took=seconds)
        return settled

    def _fit(self, plan: Plan, network: nn.Module, batches: Batches, purpose: tuple[object, ...]) -> int:
        """Train the network in place; returns the epochs that this took."""
        config, head, best = self.config, None, None
        if plan.recipe.turns:
            draw = seeds.generator(config.seed, "turns", *purpose)
            head = TurnedHead(network, self.method.graph.head.name, draw)
        if plan.keep_best:
            best = Best(network, config.cpg_patience)
            network.add_module(NAME, best)
        if plan.prepare is not None:
            plan.prepare(network, 1)
        fit(
            Work(
                network,
                drafts.groups_of(network),
                batches,
                plan.recipe,
                seed=seeds.derive(config.seed, *purpose),
                after_epoch=self._watch(plan, network, best),
                score_schedule=plan.score_schedule,
                is_over=best.is_over if best is not None else None,
            )
        )
        if best is not None:
            best.bring_back()
            delattr(network, NAME)
        if head is not None:
            head.undo()
        return int(best.epoch) if best is not None else plan.recipe.epochs

    def _watch(self, plan: Plan, network: nn.Module, best: Best | None) -> Callable[[Epoch], None]:
        """What happens after an epoch, and before the next."""
        opened = self.opened

        def after_epoch(epoch: Epoch) -> None:
            details = {"epoch": epoch.number, "epochs": epoch.epochs, "loss": epoch.loss}
            if best is not None:
                details["val"] = evaluate(network, opened.held_out, opened.normalise, self.config.device).accuracy
                best.note(details["val"])
            if plan.prepare is not None:
                plan.prepare(network, epoch.number + 1)
            self.method.emit("epoch", task=opened.task.name, stage=plan.name, round=plan.round, **details)

        return after_epoch

    def _settle(self, draft: Draft, batches: Batches) -> Settled:
        """The plain network with weights as a file has them and norm statistics of its own, and its score."""
        method, opened, device = self.method, self.opened, self.config.device
        channels = method.training.channels
        network = drafts.plain_network(method.graph, channels, draft, self.config.kernel_format)
        estimate_statistics(network, batches.inputs(epochs=2))
        state = network.state_dict()
        draft = dataclasses.replace(draft, rest={key: state[key] for key in draft.rest})
        score = evaluate(network, opened.held_out, opened.normalise, device)
        return Settled(draft, network, score.accuracy)
