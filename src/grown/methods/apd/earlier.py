"""Earlier tasks while a new one trains: what holds the shared weights, in one expression a layer.

The objective has for each earlier task i and weight

    lambda_1 |tau_i| + lambda_2 (shared sigma(v_i) + tau_i - theta_i*)^2

in which tau_i stands alone: whatever the other parts are, the best tau_i is known, theta_i* - shared sigma(v_i) moved
towards zero by lambda_1 / (2 lambda_2). So tau_i need not be stepped. Put in, it leaves Huber's function of that
difference, by which only the shared weights and v_i learn: no parameter, gradient or momentum for tau_i, and no rate at
which it diverges. What is locally shared is taken off theta_i* beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grown.methods.shared.training import Weights
from grown.methods.shared.weights import cut


class Earlier(nn.Module):
    """The masks of earlier tasks as parameters, beside what is left of their weights to be made up."""

    def __init__(self, masks: list[Weights], rest: list[Weights], kernels: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.masks = nn.ParameterList()
        anchors = []
        for key, kernel in kernels.items():
            self.masks.append(nn.Parameter(torch.stack([own[key] for own in masks], 1).to(kernel.device)))  # (out, t)
            anchors.append(torch.stack([own[key].flatten(1) for own in rest], 1).to(kernel.device))  # (out, t, n)
        self._beside = (list(kernels.values()), anchors)  # in a tuple: none of it is this module's to train

    def penalty(self, sparsity: float, drift: float) -> Tensor:
        """Both terms of all earlier tasks, at the best tau."""
        kernels, anchors = self._beside
        terms = [
            F.huber_loss(
                torch.bmm(torch.sigmoid(v).unsqueeze(2), kernel.flatten(1).unsqueeze(1)),
                anchor,
                reduction="sum",
                delta=sparsity / (2 * drift),
            )
            for v, kernel, anchor in zip(self.masks, kernels, anchors, strict=True)
        ]
        return 2 * drift * torch.stack(terms).sum()

    def values(self, number: int, keys: Iterable[str]) -> Weights:
        """The masks of the task of this number, from 0."""
        return {
            key: v.detach()[:, number].cpu().contiguous() for key, v in zip(keys, self.masks.parameters(), strict=True)
        }


def best_tau(difference: Tensor, sparsity: float, drift: float) -> Tensor:
    """The tau that minimises sparsity |tau| + drift (tau - difference)^2, cut at the sparsity's strength."""
    tau = F.softshrink(difference, sparsity / (2 * drift))
    return cut(tau, sparsity)
