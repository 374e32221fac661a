"""How CPG (Hung and others, 2019) learns one task: pick, grow, compact, retrain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from grown.methods.cpg import schedule
from grown.methods.cpg.stages import Settled, Stages

if TYPE_CHECKING:
    from grown.methods.cpg.method import CPG


def learn(method: CPG, stages: Stages, goal: float | None, left: int) -> Settled:
    """Learn a task of which `left` are still to be learned, itself among them."""
    settled, is_full = pick_and_grow(method, stages, goal)
    settled = compact(stages, settled, goal, schedule.needed(left) if is_full else 0.0)
    retrained = stages.retrain(settled.draft)
    if retrained.val >= settled.val:
        settled = retrained
    if method.config.refit:  # which learns from the held-out images too, so that they can score it no more
        settled = replace(stages.refit(settled.draft), val=settled.val)
    return settled


def pick_and_grow(method: CPG, stages: Stages, goal: float | None) -> tuple[Settled, bool]:
    """Train at the present widths; while that misses the goal, widen and begin again, up to the cap.

    The goal is the target on held-out images, and a training accuracy. Says also whether the cap is reached.
    """
    config, plan = method.config, method.widening_plan()
    for number, widths in enumerate(plan, start=1):
        settled = stages.pick(method.open(stages.opened.task, widths), number)
        met = _holds(settled, goal, config.margin)
        if met and stages.training_accuracy(settled) >= config.cpg_train_goal:
            break
    return settled, settled.draft.widths == plan[-1]


def compact(stages: Stages, settled: Settled, goal: float | None, needed: float) -> Settled:
    """Prune the task's own weights, level by level, as far as the goal holds and at least as far as is needed."""
    config, before = stages.config, 0.0
    counts = {name: int(own.sum()) for name, own in settled.draft.own.items()}
    if not any(counts.values()):
        return settled
    for level in schedule.levels(config):
        must = before < needed - 1e-9
        if not must and not _holds(settled, goal, config.margin):
            break
        pruned = stages.prune(settled.draft, counts, before, level)
        if not must and not _holds(pruned, goal, config.margin):
            break
        settled, before = pruned, level
    return settled


def _holds(settled: Settled, goal: float | None, margin: float) -> bool:
    return goal is None or settled.val >= goal - margin
