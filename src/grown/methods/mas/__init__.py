"""MAS: a kernel weight is held by how much it moves the answers (Aljundi and others, 2018)."""

from typing import ClassVar

import torch
from torch import Tensor

from grown.methods.shared.importance import mean_of_gradients
from grown.methods.shared.quadratic import QuadraticMethod
from grown.methods.shared.training import Guard, Training, Weights


class MAS(QuadraticMethod):
    """One network; a quadratic penalty holds what the answers to earlier tasks are sensitive to."""

    name: ClassVar[str] = "mas"

    def _strength(self) -> float:
        return self.config.mas_strength

    def _weigh(self, training: Training, guard: Guard) -> Weights:  # noqa: ARG002
        """The mean absolute gradient of the squared length of the logits; labels are not asked for."""
        config = self.config
        return mean_of_gradients(training, config.importance_images, config.seed, _squared_length, torch.abs)


def _squared_length(logits: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
    return logits.square().sum()
