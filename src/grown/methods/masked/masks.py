"""Masks on the kernels of one layer: which weights count, by scores that are learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grown.nn import masks


class Mask(nn.Module):
    """Scores, and the factors that they stand for; the gradient passes straight through to the scores."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self) -> Tensor:
        """A factor for each weight."""
        raise NotImplementedError

    def picked(self) -> Tensor:
        """Which scores are on, as flags."""
        raise NotImplementedError


class Threshold(Mask):
    """On where a score is above the threshold."""

    def __init__(self, scores: Tensor, threshold: float) -> None:
        super().__init__(scores)
        self.threshold = threshold

    def forward(self) -> Tensor:
        return masks.hard_mask(self.scores - self.threshold)

    @torch.no_grad()
    def picked(self) -> Tensor:
        """Which scores are above it."""
        return self.scores - self.threshold > 0


class Largest(Mask):
    """On where a score is among so many largest of the layer."""

    def __init__(self, scores: Tensor, density: float) -> None:
        super().__init__(scores)
        self.count = max(1, round(density * scores.numel()))

    def forward(self) -> Tensor:
        return masks.hard_mask(self.scores - self._cut())

    @torch.no_grad()
    def picked(self) -> Tensor:
        """Which scores are among them."""
        return self.scores - self._cut() > 0

    @torch.no_grad()
    def _cut(self) -> Tensor:
        """The largest score that is not on: found on the device, which nobody waits for."""
        rest = self.scores.numel() - self.count
        if rest == 0:
            return torch.full((), -torch.inf, device=self.scores.device)
        return self.scores.flatten().topk(rest, largest=False, sorted=False).values.max()


def drawn(shape: torch.Size, spread: float, generator: torch.Generator) -> Tensor:
    """Scores to begin with: uniform within so far of 0."""
    return torch.empty(shape).uniform_(-spread, spread, generator=generator)
