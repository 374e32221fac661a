"""LwF: the new task's images keep the old networks' answers (Li and Hoiem, 2016)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from grown.data.normalisation import Normalisation
from grown.methods.shared.branches import Branches, frozen
from grown.methods.shared.branching import BranchingMethod
from grown.methods.shared.training import Guard, Training
from grown.train.batches import Batch

LARGEST = 1.0  # the length of a step's gradient, at most


class LwF(BranchingMethod):
    """One network; what earlier tasks' heads answer to a new task's images is distilled while it trains."""

    name: ClassVar[str] = "lwf"
    own_images: ClassVar[bool] = False

    def _protect(self, training: Training, branches: Branches) -> Guard:
        teachers = frozen(self._skeleton(), training.start, self._own)
        scales = [Rescale(training, self._records[name][1]) for name in self._own]
        config = self.config

        def extra_loss(batch: Batch, beside: Sequence[Batch]) -> Tensor:  # noqa: ARG001
            losses = []
            for number, scale in enumerate(scales):
                x = scale(batch.x)
                with torch.no_grad():
                    taught = teachers(number, x)
                losses.append(distillation(branches(number, x), taught, config.lwf_temperature))
            return config.lwf_strength * torch.stack(losses).sum()

        @contextmanager
        def around_update() -> Iterator[None]:
            # Through norms with fixed statistics a gradient knows no bounds, and a high rate would make it diverge.
            nn.utils.clip_grad_norm_(training.network.parameters(), LARGEST)
            yield

        return Guard(extra_loss=extra_loss, around_update=around_update, aside=branches)


def distillation(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """The cross-entropy between both answers, softened by the temperature; the mean over images."""
    soft = (taught / temperature).softmax(1)
    return -(soft * (logits / temperature).log_softmax(1)).sum(1).mean()


class Rescale:
    """Images as one task has them normalised, normalised as another has them."""

    def __init__(self, training: Training, old: Normalisation) -> None:
        new, device = training.normalise, training.batches.device
        mean, deviation = (torch.tensor(values, device=device) for values in (new.mean, new.deviation))
        old_mean, old_deviation = (torch.tensor(values, device=device) for values in (old.mean, old.deviation))
        self.factor, self.shift = deviation / old_deviation, (mean - old_mean) / old_deviation

    def __call__(self, x: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return x * self.factor.view(shape) + self.shift.view(shape)
