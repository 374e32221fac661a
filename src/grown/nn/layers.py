"""The layers of a network in training: kernels behind masks, at their physical width, able to widen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grown.nn import accelerate, aside, masks
from grown.nn.graph import Node


@dataclass
class MaskSettings:
    """How the masks of all layers of one network work."""

    kind: str = "hard"
    select: bool = True
    sparse: bool = True
    soft: bool = False
    start: float = 0.02  # where the scores of frozen kernels start
    new_start: float = 0.02  # and of trainable ones
    noise: masks.Noise = field(default_factory=lambda: masks.Noise(1.0, 0.0))


class MaskedLayer(nn.Module):
    """A convolution or linear layer whose kernels (out, in, *k) are frozen or trainable, and masked.

    `frozen` is a buffer, zero where a kernel is trainable; `weight` is a parameter, zero where one is frozen. A kernel
    may be neither: it then stays off.

    A kernel that is alone in its row, which only batch norms read (`normed`), has no mask: they undo what it is
    multiplied by, so that its score's gradient is all but nothing, and Adam makes whole steps of that until the channel
    is gone.
    """

    frozen: Tensor | None
    is_frozen: Tensor
    trainable: Tensor
    learned: Tensor
    constant: Tensor
    share: Tensor
    codes: Tensor  # 0: never used, 1: always, 2: its score decides

    def __init__(
        self,
        node: Node,
        kernels: Tensor,
        is_frozen: Tensor,
        trainable: Tensor,
        settings: MaskSettings,
        *,
        normed: bool = False,
    ) -> None:
        super().__init__()
        self.node = node
        self.settings = settings
        self.normed = normed
        bias = bool(node.attrs["bias"])
        self.bias = nn.Parameter(torch.zeros(kernels.shape[0])) if bias else None
        scores = torch.where(is_frozen, settings.start, settings.new_start)
        self._lay_out(kernels, is_frozen, trainable, scores)

    def _lay_out(self, kernels: Tensor, is_frozen: Tensor, trainable: Tensor, scores: Tensor) -> None:
        """Divide the kernels between buffer and parameter, and say where a mask is learned."""
        shape = (*is_frozen.shape, *([1] * (kernels.ndim - 2)))
        any_frozen, any_trainable = bool(is_frozen.any()), bool(trainable.any())
        self.register_buffer("frozen", kernels * is_frozen.view(shape) if any_frozen else None)
        self.register_buffer("is_frozen", is_frozen)
        self.register_buffer("trainable", trainable)
        self.register_buffer("share", trainable.to(kernels.dtype))
        self.weight = nn.Parameter(kernels * trainable.view(shape)) if any_trainable else None
        learned = (is_frozen & self.settings.select) | (trainable & self.settings.sparse)
        if self.normed and kernels.shape[1] == 1:
            learned = torch.zeros_like(learned)
        self.register_buffer("learned", learned)
        usable = is_frozen | trainable
        self.register_buffer("constant", (usable & ~learned).to(kernels.dtype))
        self.register_buffer("codes", usable.to(torch.uint8) + (usable & learned).to(torch.uint8))
        self.all_learned = bool(learned.all())
        self.all_trainable = bool(trainable.all())
        self.scores = nn.Parameter(scores) if bool(learned.any()) else None

    def mask(self) -> Tensor:
        """The differentiable mask (out, in) over all kernels."""
        if self.scores is None:
            return self.constant
        if self.settings.kind == "gumbel":
            drawn = masks.gumbel_mask(self.scores, self.settings.noise, self.training)
            mask = drawn if self.all_learned else torch.where(self.learned, drawn, self.constant)
        elif self.all_learned:
            mask = masks.hard_mask(self.scores)
        else:
            mask = masks.hard_mask(self.scores, self.learned, self.constant)
        return masks.soften(mask, self.scores, self.is_frozen) if self.settings.soft else mask

    @torch.no_grad()
    def picked(self) -> Tensor:
        """Which kernels are on (out, in), without noise."""
        if self.scores is None:
            return self.constant > 0
        return torch.where(self.learned, self.scores > 0, self.constant > 0)

    @torch.no_grad()
    def soft_values(self) -> Tensor:
        """What an unpicked frozen kernel is multiplied by in the soft form."""
        if self.scores is None:
            return torch.zeros_like(self.constant)
        return masks.soft_values(self.scores, self.is_frozen)

    @torch.no_grad()
    def kernels(self) -> Tensor:
        """All kernels, unmasked."""
        if self.frozen is None:
            return cast(Tensor, self.weight).detach()
        return self.frozen if self.weight is None else self.frozen + self.weight

    def effective(self, gate: Tensor | None) -> Tensor:
        """The masked kernels; `gate` closes input channels."""
        if self.scores is None and gate is None and self.all_trainable:
            return self._bare()
        if kernels := self._fusable():
            dtype = accelerate.conv_precision()

            def make() -> Tensor:
                fast: Tensor = kernels.fused_kernels(
                    self.frozen, self.weight, self.scores, self.codes, self.share, gate, dtype
                )
                return fast

            return aside.run(make) if aside.is_on() else make()
        mask = self.mask() if gate is None else self.mask() * gate
        share = None if self.all_trainable else self.share
        return masks.masked_kernels(self.frozen, self.weight, mask, share)

    def _bare(self) -> Tensor:
        """Kernels that nothing masks; beside the main stream in the precision that the convolution has."""
        weight = cast(Tensor, self.weight)
        if not aside.is_on() or not torch.is_autocast_enabled("cuda"):
            return weight
        return aside.run(lambda: weight.to(accelerate.conv_precision()))

    def _fusable(self) -> Any:
        """The fused kernels, where they compute the same as the reference: hard masks, kernels laid channels-last."""
        some = self.frozen if self.frozen is not None else self.weight
        if some is None or not some.is_cuda or self.settings.kind != "hard" or self.settings.soft:
            return None
        in_order = some.is_contiguous(memory_format=torch.channels_last) if some.ndim == 4 else some.shape[2] == 1
        return accelerate.fused() if in_order else None

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        weight = self.effective(gate)
        if self.node.op == "linear":
            return F.linear(x, weight.flatten(1), self.bias)
        attrs: dict[str, Any] = self.node.attrs
        padding = attrs["padding"]
        if attrs["padding_mode"] != "zeros":
            x, padding = _pad(x, attrs), 0
        groups = weight.shape[0] if attrs["depthwise"] else 1
        if aside.is_on() and groups == 1 and self.bias is None and not isinstance(padding, str) and self._fusable():
            pair = (padding, padding) if isinstance(padding, int) else tuple(padding)
            return aside.convolve(x, weight, tuple(attrs["stride"]), pair, tuple(attrs["dilation"]))
        return F.conv2d(x, weight, self.bias, attrs["stride"], padding, attrs["dilation"], groups)

    @torch.no_grad()
    def widen(self, rows: Tensor, columns: Tensor, fresh: Tensor) -> None:
        """Put the present kernels at these positions of a larger layer whose other kernels are `fresh`."""
        at = (rows[:, None], columns)
        kernels = fresh.clone()
        kernels[at] = self.kernels()
        is_frozen = torch.zeros(fresh.shape[:2], dtype=torch.bool, device=fresh.device)
        is_frozen[at] = self.is_frozen
        trainable = torch.ones_like(is_frozen)
        trainable[at] = self.trainable
        scores = torch.full(fresh.shape[:2], self.settings.new_start, device=fresh.device)
        if self.scores is not None:
            scores[at] = self.scores
        if self.bias is not None:
            bias = torch.zeros(fresh.shape[0], device=fresh.device)
            bias[rows] = self.bias
            self.bias = nn.Parameter(bias)
        self._lay_out(kernels, is_frozen, trainable, scores)


def _pad(x: Tensor, attrs: dict[str, Any]) -> Tensor:
    padding = attrs["padding"]
    if padding == "valid":
        return x
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(attrs["dilation"], attrs["kernel"], strict=True)]
        pads = [total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2]
    else:
        pads = [padding[1], padding[1], padding[0], padding[0]]
    return F.pad(x, pads, mode=attrs["padding_mode"])


class Head(nn.Module):
    """A task's own last layer (classes, channels x repeat).

    While it is turned it has several rows a class: in training it answers with all, otherwise with the first of each.
    """

    def __init__(self, classes: int, channels: int, repeat: int, bias: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.repeat = repeat
        self.turns = 1
        spread = 1.0 / max(1, channels * repeat) ** 0.5
        start = torch.empty(classes, channels * repeat).uniform_(-spread, spread, generator=generator)
        self.weight = nn.Parameter(start)
        self.bias = nn.Parameter(torch.zeros(classes)) if bias else None

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if self.turns > 1 and not self.training:
            weight, bias = weight[:: self.turns], None if bias is None else bias[:: self.turns]
        if gate is not None:
            weight = weight * (gate.repeat_interleave(self.repeat) if self.repeat > 1 else gate)
        return F.linear(x, weight, bias)

    @torch.no_grad()
    def turn(self, turns: int, generator: torch.Generator) -> None:
        """Have so many rows a class: the present one first, the others drawn anew."""
        classes, columns = self.weight.shape
        spread = 1.0 / max(1, columns) ** 0.5
        wide = torch.empty(classes, turns, columns).uniform_(-spread, spread, generator=generator)
        wide[:, 0] = self.weight.cpu()
        self.weight = nn.Parameter(wide.flatten(0, 1).to(self.weight.device))
        if self.bias is not None:
            bias = torch.zeros(classes, turns, device=self.bias.device)
            bias[:, 0] = self.bias
            self.bias = nn.Parameter(bias.flatten())
        self.turns = turns

    @torch.no_grad()
    def upright(self) -> None:
        """Only the first row of each class again."""
        self.weight = nn.Parameter(self.weight[:: self.turns].clone())
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias[:: self.turns].clone())
        self.turns = 1

    @torch.no_grad()
    def widen(self, columns: Tensor, channels: int, generator: torch.Generator) -> None:
        """Put the present columns at these channels; the others are drawn anew."""
        classes, device = self.weight.shape[0], self.weight.device
        spread = 1.0 / max(1, channels * self.repeat) ** 0.5
        wide = torch.empty(classes, channels, self.repeat).uniform_(-spread, spread, generator=generator).to(device)
        wide[:, columns] = self.weight.view(classes, -1, self.repeat)
        self.weight = nn.Parameter(wide.flatten(1))


@torch.no_grad()
def widen_norm(norm: nn.Module, positions: Tensor, channels: int) -> nn.Module:
    """The same norm with more channels; the present ones move to these positions."""
    if isinstance(norm, nn.GroupNorm):
        size = norm.num_channels // norm.num_groups
        wide: nn.Module = nn.GroupNorm(channels // size, channels, norm.eps, norm.affine)
    else:
        batch = cast(nn.BatchNorm2d, norm)
        wide = type(batch)(channels, batch.eps, batch.momentum, batch.affine)
    present = norm.state_dict()
    for key, value in wide.state_dict().items():
        if value.ndim == 1:
            value[positions] = present[key].to(value.device)
        else:
            value.copy_(present[key])
    device = next((tensor.device for tensor in present.values()), torch.device("cpu"))
    return wide.to(device).train(norm.training)
