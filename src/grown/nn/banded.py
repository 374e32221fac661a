"""Local response norm on a CPU, in a few large operations: windows of channels are summed by a matrix of bands.

PyTorch's own pools over three dimensions for it and takes a general power: more than half of LeNet's step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

MOST = 256  # channels; with more, a matrix has more to multiply than pooling has to add


def lrn(x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """Each value over a power of `k` and `alpha` times the mean square in its window of `size` channels."""
    band = _bands(torch.arange(x.shape[1]), size).to(x.dtype)
    y: Tensor = _BandedLrn.apply(x, None, band, alpha / size, beta, k)  # type: ignore[no-untyped-call]
    return y


def ordered_lrn(x: Tensor, counted: Tensor, order: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """The same with the channels in this order, where the squares are those of `counted`; y is in x's own order."""
    band = _bands(torch.argsort(order), size).to(x.dtype)
    y: Tensor = _BandedLrn.apply(x, counted, band, alpha / size, beta, k)  # type: ignore[no-untyped-call]
    return y


def _bands(place: Tensor, size: int) -> Tensor:
    """Whether the window of one channel (rows) reaches another (columns), when each stands at its place."""
    ahead = place[None, :] - place[:, None]
    return (ahead >= -(size // 2)) & (ahead <= (size - 1) // 2)  # (channels, channels)


class _BandedLrn(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, counted: Tensor | None, band: Tensor, alpha: float, beta: float, k: float
    ) -> Tensor:
        flat = x.flatten(2)  # (n, channels, places)
        squared = flat if counted is None else counted.flatten(2)
        total = torch.matmul(band, squared.square()).mul_(alpha).add_(k)
        if beta == 0.75:  # as published; two square roots take a fifth of a power's time
            root = total.rsqrt_()
            power, inverse = root.sqrt().mul_(root), root.square_()
        else:
            power, inverse = total.pow(-beta), total.reciprocal_()
        ctx.save_for_backward(flat, squared, band, power, inverse)
        ctx.slope, ctx.apart = -2 * alpha * beta, counted is not None
        return (flat * power).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """A value counts in its own quotient, and through its square in those whose window reaches it."""
        flat, squared, band, power, inverse = ctx.saved_tensors
        own = grad.reshape(flat.shape) * power
        quotients = (own * flat).mul_(inverse)
        square = torch.matmul(band.T, quotients).mul_(squared)
        if ctx.apart:
            return own.view(grad.shape), square.mul_(ctx.slope).view(grad.shape), None, None, None, None
        return own.add_(square, alpha=ctx.slope).view(grad.shape), None, None, None, None, None
