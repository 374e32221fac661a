"""A layer in training whose mask has a bit for each weight."""

from __future__ import annotations

import torch
from torch import Tensor

from grown.nn import aside
from grown.nn.accelerate import channels_first
from grown.nn.graph import Node
from grown.nn.layers import MaskedLayer, MaskSettings


class ElementLayer(MaskedLayer):
    """A masked layer in which each weight (out, in, *k) is a kernel of its own.

    Weights of earlier tasks are behind a mask that is learned (`picking`) or all in use; the task's own are all in use
    until they are pruned. Inside they lie as the convolution of a GPU reads them: (out, k x in, 1), channels last.
    """

    def __init__(self, node: Node, values: Tensor, frozen: Tensor, own: Tensor, *, picking: bool, start: float) -> None:
        self._shape = values.shape
        settings = MaskSettings(select=picking, sparse=False, start=start)
        super().__init__(node, flat(values)[..., None], flat(frozen), flat(own).clone(), settings)
        self.is_pruning = not picking
        self.all_trainable = self.all_trainable and picking  # what may be pruned is masked from the start
        if self.frozen is None and self.weight is None:  # nothing was picked, and nothing was left to train
            self.frozen = torch.zeros_like(flat(values)[..., None])

    def effective(self, gate: Tensor | None) -> Tensor:
        """The masked weights as the layer's operation takes them."""
        weight = super().effective(gate)
        # Where weight gradients run on a side stream, all that they go through on their way back must run there too.
        return aside.run(lambda: self._as_read(weight)) if aside.is_on() else self._as_read(weight)

    def _as_read(self, weight: Tensor) -> Tensor:
        """In the operation's shape."""
        return channels_first(unflat(weight.squeeze(2), self._shape)) if len(self._shape) == 4 else weight

    @torch.no_grad()
    def prune(self, count: int) -> None:
        """Leave so many of the task's own weights on, the largest; in place, since a captured step reads it."""
        if not self.is_pruning:
            raise ValueError("masks stand still while weights are pruned")
        if self.weight is None:
            return
        size = self.weight.abs().flatten().masked_fill_(~self.trainable.flatten(), -1.0)
        dropped = torch.sort(size, descending=True, stable=True).indices[count:]
        self.trainable.view(-1)[dropped] = False
        usable = self.is_frozen | self.trainable
        for buffer, values in ((self.share, self.trainable), (self.constant, usable), (self.codes, usable)):
            buffer.copy_(values)

    @torch.no_grad()
    def own(self) -> tuple[Tensor, Tensor]:
        """The task's own weights (0 elsewhere), and which they are."""
        which = unflat(self.trainable, self._shape)
        if self.weight is None:
            return torch.zeros(self._shape, device=which.device), which
        return unflat(self.weight.squeeze(2), self._shape) * which, which

    @torch.no_grad()
    def picks(self) -> Tensor:
        """Which weights are on, of whomever."""
        return unflat(self.picked(), self._shape)


def flat(values: Tensor) -> Tensor:
    """Weights (out, in, *k) in two axes, those of a convolution channels last."""
    return (values.permute(0, 2, 3, 1) if values.ndim == 4 else values).flatten(1)


def unflat(values: Tensor, shape: torch.Size) -> Tensor:
    """The reverse of `flat`, in the same memory."""
    if len(shape) != 4:
        return values.view(shape)
    return values.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
