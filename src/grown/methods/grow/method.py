"""The learner of Grow: GROWN's banks, owners and files; another way to grow, and no choice among what is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from grown.config import Config
from grown.data.task import Task
from grown.io.state import State
from grown.methods.base import TaskReport
from grown.methods.grow.stage import GrowStage
from grown.methods.grown import algorithm
from grown.methods.grown.learner import Learner
from grown.methods.grown.stage import Stage


class Grow(Learner):
    """Every task grows channels by continuous sparsification; all that is there is frozen and used (Yuan et al., 2021).

    `foresee(tasks)` names all tasks, so that each gets an equal share of `max_size`; nothing else of them is looked at.
    """

    name: ClassVar[str] = "grow"
    stage_type: ClassVar[type[Stage]] = GrowStage
    picks: ClassVar[bool] = False

    _foreseen: frozenset[str] = frozenset()

    def foresee(self, tasks: Sequence[Task]) -> None:
        """Name the tasks, those learned already too."""
        self._foreseen = frozenset(task.name for task in tasks)

    @property
    def tasks_to_come(self) -> int:
        """How many tasks share what is left of the budget, the present one among them."""
        return max(1, len(self._foreseen - set(self.records)))

    def configure(self, config: Config) -> None:
        """Go on with these settings."""
        super().configure(without_masks(config))

    def state(self) -> State:
        """Everything that was learned, as data; which kernels a task uses follows from its channels."""
        state = super().state()
        state.tensors = {name: tensor for name, tensor in state.tensors.items() if not name.endswith("/picked")}
        return state

    def _learn(self, task: Task) -> TaskReport:
        """Grow and train at once; no target is asked for."""
        with algorithm.using_threads(self.config.threads):
            stage = self.open(task)
            best = algorithm.train(stage)
            if self.config.refit:
                stage = stage.anew(0, all_data=True)
                best = dataclasses.replace(algorithm.train(stage), val=best.val)
            report = stage.commit(best, remember=True)
            self.emit("committed", task=task.name, val=report.val, target=None, grew=report.grew)
            return report


def without_masks(config: Config) -> Config:
    """The settings without what is GROWN's alone: selective and attentive masks, related starts."""
    return config.replace(
        select=False, sparse=False, retrain=True, grow=True, soft_select=False, mask="hard", start="open", density=None
    )
