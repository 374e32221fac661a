"""Methods that run the networks of earlier tasks in every step of a training: what LwF and replay have in common."""

from __future__ import annotations

from typing import ClassVar

from torch import fx

from grown.methods.shared.branches import Branches
from grown.methods.shared.method import SharedMethod
from grown.methods.shared.training import Guard, Training
from grown.nn.plain import build, fill
from grown.train.statistics import estimate_statistics


class BranchingMethod(SharedMethod):
    """Earlier tasks' norms, biases and heads train on with the kernels, by a loss of their own."""

    own_images: ClassVar[bool]  # whether earlier tasks train on images of theirs, from which norms get statistics

    def _protect(self, training: Training, branches: Branches) -> Guard:
        """The guard of a training with earlier tasks."""
        raise NotImplementedError

    def _skeleton(self, classes: int = 1) -> fx.GraphModule:
        """A plain network without weights, through which each task's are run."""
        training = self.training
        return build(training.graph, training.channels, training.widths, classes)

    def _guard(self, training: Training) -> Guard:
        if not self._own:
            return Guard()
        return self._protect(training, Branches(self._skeleton().train(self.own_images), training.kernels, self._own))

    def _remember(self, training: Training, guard: Guard) -> None:
        if not isinstance(guard.aside, Branches):
            return
        kernels = {key: kernel.detach() for key, kernel in training.kernels.items()}
        for number, (name, own) in enumerate(list(self._own.items())):
            values = guard.aside.values(number)
            if self.own_images:
                network = fill(self._skeleton(len(self._records[name][0])), {**kernels, **values})
                estimate_statistics(network.to(self.config.device), guard.beside[number].inputs(epochs=2))
                values = {key: value.cpu() for key, value in network.state_dict().items()}
            self._own[name] = {key: values[key] for key in own}
