"""Masks on the kernels of one layer: which weights count, by scores that are learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grown.nn import accelerate, masks


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


class Cut(Mask):
    """On where a score is above the cut."""

    def cut(self) -> Tensor:
        """What a score must be above, on the device."""
        raise NotImplementedError

    def forward(self) -> Tensor:
        return masks.hard_mask(self.scores - self.cut())

    @torch.no_grad()
    def picked(self) -> Tensor:
        """Which scores are above it."""
        return self.scores - self.cut() > 0


class Threshold(Cut):
    """The cut is the same throughout."""

    threshold: Tensor

    def __init__(self, scores: Tensor, threshold: float) -> None:
        super().__init__(scores)
        self.register_buffer("threshold", torch.tensor(threshold), persistent=False)

    def cut(self) -> Tensor:
        return self.threshold


class Largest(Cut):
    """So many scores of the layer are on, the largest."""

    def __init__(self, scores: Tensor, density: float) -> None:
        super().__init__(scores)
        self.count = max(1, round(density * scores.numel()))

    @torch.no_grad()
    def cut(self) -> Tensor:
        """The largest score that is not on: found on the device, which nobody waits for."""
        scores = self.scores.detach()
        rest = scores.numel() - self.count
        if rest == 0:
            return torch.full((), -torch.inf, device=scores.device)
        if kernels := accelerate.fused_for(scores):
            found: Tensor = kernels.smallest(scores, rest)
            return found
        return scores.flatten().topk(rest, largest=False, sorted=False).values.max()


def drawn(shape: torch.Size, spread: float, generator: torch.Generator) -> Tensor:
    """Scores to begin with: uniform within so far of 0."""
    return torch.empty(shape).uniform_(-spread, spread, generator=generator)
