"""GROWN: grow only when necessary. The paper's Algorithm 1, in its order and with its equations.

Algorithm 1 is printed with two slips, which are mended here: reuse is Eq. 5 and 7 together (it names Eq. 5 alone), and
growth has the attentive mask too (Eq. 8).

The objectives, written where they are computed:

    Eq. 1   x_out = f(x_in, F * m_g)                    a gate per channel            nn/network.py
    Eq. 2   L(w * m_g) + lambda ||m_g||_0               conventional growth           sparse=False
    Eq. 3   L(w * m_g * m_a) + lambda ||m_g||_0         learnable sparse growth       growth/budget.py
    Eq. 5   L_t(w_{t-1} * m_s)                          selective mask                nn/layers.py
    Eq. 6   p = sigmoid((m + g0 - g1) / T)              Gumbel-sigmoid, corrected     nn/masks.py
    Eq. 7   L_t(w_{t-1} * m_s, w_t)                     and released kernels          nn/layers.py
    Eq. 8   L_t(w_{t-1} * m_s, w_t * m_g * m_a) + lambda ||m_g||_0
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from grown import seeds
from grown.data.task import Task
from grown.methods.base import StageReport, TaskReport
from grown.methods.grown.settled import Settled
from grown.methods.grown.stage import Stage
from grown.train.batches import Batches
from grown.train.evaluate import evaluate
from grown.train.loop import fit
from grown.train.steps import Epoch, Work
from grown.train.turns import TURNS

if TYPE_CHECKING:
    from grown.methods.grown.learner import Learner


def learn(learner: Learner, task: Task) -> TaskReport:
    """Learn one task."""
    with using_threads(learner.config.threads):
        # Task 1 opens as a seed network with candidates: sparse growth, Eq. 3.
        # A later task opens with a selective mask on all frozen kernels, and released kernels to train: Eq. 5 and 7.
        stage = learner.open(task)
        target = learner.targets.of(stage)
        # Beyond the paper, reuse is not trained to its end where a glance shows that it is hopeless.
        stage, glance = _glance(stage, target)
        best, expansions = glance or train(stage), 0

        # If current accuracy < target accuracy: grow sparsely, Eq. 8, and resume the procedure.
        while learner.config.grow and _misses(best, target, learner.config.margin):
            if stage.expansions >= learner.config.expansions or not stage.expand():
                break
            if not learner.config.trial:
                expansions = stage.expansions
                continue
            if learner.config.anew:
                asked, stage = stage.expansions, stage.anew(stage.expansions)
                if stage.expansions < asked:  # begun anew, with every channel open, it has no room for more
                    break
            grown = train(stage)
            # Growth that gained nothing on the held-out images was not necessary.
            if grown.val.accuracy > best.val.accuracy:
                best, expansions = grown, stage.expansions

        if best is glance:  # growth brought nothing, so reuse is all there is, and goes to its end
            best = train(stage := stage.anew(0))

        # The held-out images have decided; now they may be learned from too.
        if learner.config.refit:
            stage = stage.anew(expansions, all_data=True)
            best = dataclasses.replace(train(stage), val=best.val)

        # Otherwise set the current model as w_t.
        report = stage.commit(best, target, remember=True)
        learner.emit("committed", task=task.name, val=report.val, target=target, grew=report.grew)
        return report


def _glance(stage: Stage, target: float | None) -> tuple[Stage, Settled | None]:
    """A short reuse where one is asked for, and its outcome if it is hopeless; beyond the paper.

    What expands begins anew, so that nothing but time is lost when reuse is not trained to its end.
    """
    config = stage.learner.config
    if not config.glance or target is None or stage.first:
        return stage, None
    if not (config.grow and config.expansions and stage.has_room):
        return stage, None
    stage.name, stage.share = "glance", config.glance
    settled = train(stage)
    if settled.val.accuracy < target - config.hopeless:
        return stage, settled
    return stage.anew(0), None


def _misses(settled: Settled, target: float | None, margin: float) -> bool:
    return target is not None and settled.val.accuracy < target - margin


def train(stage: Stage) -> Settled:
    """One training of the stage's network, then its plain network with statistics of its own."""
    learner, config = stage.learner, stage.learner.config
    began = time.perf_counter()
    purpose = (stage.task.name, stage.name, stage.rounds)
    recipe = stage.recipe
    batches = Batches(stage.fit, stage.normalise, recipe, config.device, config.seed, *purpose)
    learner.emit("stage", task=stage.task.name, stage=stage.name, round=stage.rounds, epochs=recipe.epochs)

    def after_epoch(epoch: Epoch) -> None:
        _log_flips(stage, epoch.number)
        details: dict[str, float] = {"size_x": stage.size_x}
        watched = epoch.number % recipe.watch == 0 or epoch.number == epoch.epochs
        if watched and not stage.all_data:
            score = evaluate(stage.network, stage.held_out, stage.normalise, config.device)
            details |= {"val": score.accuracy, "val_loss": score.loss}
        learner.emit(
            "epoch",
            task=stage.task.name,
            stage=stage.name,
            round=stage.rounds,
            epoch=epoch.number,
            epochs=epoch.epochs,
            loss=epoch.loss,
            **details,
        )

    if recipe.turns:
        stage.network.head.turn(TURNS, seeds.generator(config.seed, "turns", *purpose))
    fit(
        Work(
            stage.network,
            stage.parameter_groups(),
            batches,
            recipe,
            seed=seeds.derive(config.seed, *purpose),
            penalty=stage.penalty if stage.has_penalty else None,
            anneal=stage.anneal if config.mask == "gumbel" else None,
            after_epoch=after_epoch,
        )
    )
    if recipe.turns:
        stage.network.head.upright()
    settled = stage.settle(batches.inputs(epochs=2))
    _log_flips(stage, recipe.epochs)  # what the cap closed
    seconds = time.perf_counter() - began
    val = None if stage.all_data else settled.val.accuracy
    stage.reports.append(StageReport(stage.name, recipe.epochs, val, seconds))
    learner.emit("settled", task=stage.task.name, stage=stage.name, val=val, took=seconds)
    return settled


def _log_flips(stage: Stage, epoch: int) -> None:
    """Every opening and closing of a candidate channel."""
    for flip in stage.network.gate_log.take():
        stage.learner.emit("gates", task=stage.task.name, stage=stage.name, epoch=epoch, **flip)


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """PyTorch's threads on the CPU, for as long as this lasts."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
