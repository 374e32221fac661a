"""Rotation labels: each image in its four quarter turns, and each class once for each turn.

A network that must also say how an image is turned learns more from the same images. A label is class * 4 + turn, so
that the upright answers are every fourth; only these are kept once the training is over (Lee, Hwang and Shin, 2020).
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grown.nn.layers import Head

TURNS = 4


def turned(x: Tensor) -> Tensor:
    """Each image (n, h, w, c) followed by itself turned by 90, 180 and 270 degrees."""
    return torch.stack([torch.rot90(x, quarter, (1, 2)) for quarter in range(TURNS)], 1).flatten(0, 1)


def turned_labels(labels: Tensor) -> Tensor:
    """The labels of `turned` images."""
    quarters = torch.arange(TURNS, device=labels.device)
    return (labels[:, None] * TURNS + quarters).flatten()


def disagreement(logits: Tensor) -> Tensor:
    """How far the upright answer to an upright image is from what the four turns say together (which teaches)."""
    answers = logits.view(-1, TURNS, logits.shape[1] // TURNS, TURNS)  # image, its turn, class, turn of the answer
    together = torch.stack([answers[:, quarter, :, quarter] for quarter in range(TURNS)]).mean(0).detach()
    return F.kl_div(answers[:, 0, :, 0].log_softmax(1), together.log_softmax(1), reduction="batchmean", log_target=True)


class TurnedHead:
    """While a plain network trains on turned images, its last layer answers for every turn."""

    def __init__(self, network: nn.Module, name: str, generator: torch.Generator) -> None:
        self._network, self._name = network, name
        self._linear = cast(nn.Linear, network.get_submodule(name))
        weight, bias = self._linear.weight, self._linear.bias is not None
        self._head = Head(weight.shape[0], weight.shape[1], 1, bias, generator).to(weight.device)
        with torch.no_grad():
            self._head.weight.copy_(weight)
        self._head.turn(TURNS, generator)
        network.set_submodule(name, self._head)

    @torch.no_grad()
    def undo(self) -> None:
        """The plain last layer again, with the upright answers."""
        self._head.upright()
        self._linear.weight.copy_(self._head.weight)
        if self._head.bias is not None:
            self._linear.bias.copy_(self._head.bias)
        self._network.set_submodule(self._name, self._linear)
