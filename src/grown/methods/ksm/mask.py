"""KSM's mask of one layer: hard where its gate is open, a soft value without gradient where it is not."""

from __future__ import annotations

import torch
from torch import Tensor

from grown.methods.masked.masks import Mask
from grown.nn import masks

THRESHOLD = 0.005
SLOPE = 12.0  # of the gate sigma(12 (m - 0.005))


class SoftKernels(Mask):
    """A score for each kernel (out, in); the factors are for a layer of this shape."""

    every: Tensor

    def __init__(self, scores: Tensor, shape: torch.Size) -> None:
        super().__init__(scores)
        self.shape = shape
        self.register_buffer("every", torch.ones_like(scores, dtype=torch.bool), persistent=False)

    def forward(self) -> Tensor:
        return over(self.factors(), self.shape)

    def factors(self) -> Tensor:
        """1 for a kernel whose gate is open, 0.5 x its normalised score for another; the gate has the gradient."""
        return masks.soften(self._gate(), self.scores, self.every)

    @torch.no_grad()
    def picked(self) -> Tensor:
        """Which gates are open."""
        return self._gate() > 0.5

    def _gate(self) -> Tensor:
        return masks.gumbel_mask(self.scores - THRESHOLD, masks.Noise(1 / SLOPE, 0.0), training=False)


def over(factors: Tensor, shape: torch.Size) -> Tensor:
    """Factors (out, in), to be multiplied with a layer's weights; a linear layer has a kernel's beside each other."""
    if len(shape) > 2:
        return factors.view(*factors.shape, *([1] * (len(shape) - 2)))
    repeat = shape[1] // factors.shape[1]
    return factors.repeat_interleave(repeat, 1) if repeat > 1 else factors
