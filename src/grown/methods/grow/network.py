"""Gates by continuous sparsification: a channel is in use by chance, ever less so the longer it was in use."""

from __future__ import annotations

import torch
from torch import Tensor

from grown.nn.axes import Widths
from grown.nn.initial import Initializer
from grown.nn.network import GrowingNetwork


class ContinuousNetwork(GrowingNetwork):
    """Each candidate is open with probability sigma(beta s), drawn anew in every step; in evaluation if s > 0.

    beta starts at 1 and rises with each step in which the candidate was drawn, to `slope` after `span` of them: a
    filter that is used settles, one that is not stays undecided. The counts are a part of the network's state.
    """

    slope = 1.0
    span = 1
    used: Tensor  # for each candidate, group by group, in how many steps it was open

    def openness(self) -> Tensor:
        """sigma(beta s) of each candidate."""
        with torch.no_grad():
            beta = self.slope ** (self.used / self.span).clamp_max(1.0)
        return torch.sigmoid(beta * self.gate_scores())

    def _drawn(self) -> Tensor:
        if not self.training:
            scores = self.gate_scores()
            return (scores > 0).to(scores.dtype)
        p = self.openness()
        with torch.no_grad():
            drawn = (torch.rand_like(p) < p).to(p.dtype)
            self.used.add_(drawn)
        return drawn + (p - p.detach())  # in this order the sum is exactly 0 or 1

    @torch.no_grad()
    def widen(self, widths: Widths, gate_start: float, initializer: Initializer, round_: int) -> None:
        """Append candidate channels up to these widths, which were not in use yet."""
        before = dict(zip(self.gates, self.by_group(self.used), strict=True)) if self.gates else {}
        super().widen(widths, gate_start, initializer, round_)
        counts = {name: torch.zeros_like(scores) for name, scores in self.gates.items()}
        for name, mine in before.items():
            counts[name][: len(mine)] = mine
        self.register_buffer("used", torch.cat(list(counts.values())) if counts else None)
