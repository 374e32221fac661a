"""Methods that run the networks of earlier tasks in every step of a training: what LwF and replay have in common."""

from __future__ import annotations

from torch import fx

from grown.methods.shared.branches import Branches
from grown.methods.shared.method import SharedMethod
from grown.methods.shared.training import Guard, Training
from grown.nn.plain import build


class BranchingMethod(SharedMethod):
    """Earlier tasks' norms, biases and heads train on with the kernels, by a loss of their own."""

    def _protect(self, training: Training, branches: Branches) -> Guard:
        """The guard of a training with earlier tasks."""
        raise NotImplementedError

    def _skeleton(self) -> fx.GraphModule:
        """A plain network without weights, through which each task's are run."""
        training = self.training
        return build(training.graph, training.channels, training.widths, 1)

    def _guard(self, training: Training) -> Guard:
        if not self._own:
            return Guard()
        return self._protect(training, Branches(self._skeleton(), training.kernels, self._own))

    def _remember(self, training: Training, guard: Guard) -> None:  # noqa: ARG002
        if isinstance(guard.aside, Branches):
            self._own = {name: guard.aside.values(number) for number, name in enumerate(self._own)}
