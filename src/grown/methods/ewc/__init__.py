"""EWC: a kernel weight is held by its Fisher information for the tasks before (Kirkpatrick and others, 2017)."""

from typing import ClassVar

import torch
import torch.nn.functional as F

from grown.methods.shared.importance import mean_of_gradients
from grown.methods.shared.quadratic import QuadraticMethod
from grown.methods.shared.training import Guard, Training, Weights


class EWC(QuadraticMethod):
    """One network; a quadratic penalty holds what Fisher information says that earlier tasks need."""

    name: ClassVar[str] = "ewc"

    def _strength(self) -> float:
        return 0.5 * self.config.ewc_strength

    def _weigh(self, training: Training, guard: Guard) -> Weights:  # noqa: ARG002
        """The diagonal of the empirical Fisher information: squared gradients of the true labels' log-likelihood."""
        config = self.config
        return mean_of_gradients(training, config.importance_images, config.seed, F.cross_entropy, torch.square)
