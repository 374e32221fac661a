"""Local response norm, in one pass each way."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

TILE = 1024  # values a program


@triton.jit
def _lrn_forward(
    x, counted, order, y, inverse, rows, channels, k, alpha, beta,
    BEFORE: tl.constexpr, BEHIND: tl.constexpr, ORDERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x / d^beta and 1 / d, where d is k and alpha times the sum of a channel's and its neighbours' squares."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for step in tl.static_range(BEFORE + BEHIND + 1):
        near = place + step - BEFORE
        inside = (near >= 0) & (near < channels)
        column = tl.load(order + near, mask=inside, other=0) if ORDERED else near
        at = row[:, None] * channels + column[None, :]
        value = tl.load(counted + at, mask=(row < rows)[:, None] & inside[None, :], other=0.0).to(tl.float32)
        total += value * value
    inside = place < channels
    column = tl.load(order + place, mask=inside, other=0) if ORDERED else place
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * channels + column[None, :]
    share = 1.0 / (k + alpha * total)
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    tl.store(y + at, (value * tl.exp2(beta * tl.log2(share))).to(y.dtype.element_ty), mask=here)
    tl.store(inverse + at, share, mask=here)


@triton.jit
def _lrn_backward(
    grad, x, counted, order, inverse, grad_x, grad_counted, rows, channels, alpha, beta,
    BEFORE: tl.constexpr, BEHIND: tl.constexpr, ORDERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A value counts in its own quotient, and through its square in those of the channels whose window it lies in."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for step in tl.static_range(BEFORE + BEHIND + 1):
        near = place + step - BEHIND  # the windows, seen from inside
        inside = (near >= 0) & (near < channels)
        column = tl.load(order + near, mask=inside, other=0) if ORDERED else near
        at = row[:, None] * channels + column[None, :]
        there = (row < rows)[:, None] & inside[None, :]
        slope = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        share = tl.load(inverse + at, mask=there, other=1.0)
        total += slope * value * tl.exp2((beta + 1.0) * tl.log2(share))
    inside = place < channels
    column = tl.load(order + place, mask=inside, other=0) if ORDERED else place
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * channels + column[None, :]
    share = tl.load(inverse + at, mask=here, other=1.0)
    own = tl.load(grad + at, mask=here, other=0.0).to(tl.float32) * tl.exp2(beta * tl.log2(share))
    square = -2.0 * alpha * beta * total * tl.load(counted + at, mask=here, other=0.0).to(tl.float32)
    if ORDERED:
        tl.store(grad_x + at, own.to(grad_x.dtype.element_ty), mask=here)
        tl.store(grad_counted + at, square.to(grad_counted.dtype.element_ty), mask=here)
    else:
        tl.store(grad_x + at, (own + square).to(grad_x.dtype.element_ty), mask=here)


class _FusedLrn(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        counted: Tensor | None,
        order: Tensor | None,
        size: int,
        alpha: float,
        beta: float,
        k: float,
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        counted = x if counted is None else counted.contiguous(memory_format=torch.channels_last)
        y, inverse = torch.empty_like(x), torch.empty_like(x, dtype=torch.float32)
        ctx.windows = (alpha / size, beta, {"BEFORE": size // 2, "BEHIND": (size - 1) // 2})
        grid, tiles = _tiles(x)
        _lrn_forward[grid](
            x, counted, x if order is None else order, y, inverse, x.numel() // x.shape[1], x.shape[1],
            k, alpha / size, beta, ORDERED=order is not None, **ctx.windows[2], **tiles,
        )  # fmt: skip
        ctx.save_for_backward(x, counted, order, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, counted, order, inverse = ctx.saved_tensors
        alpha, beta, window = ctx.windows
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty_like(x)
        grad_counted = None if order is None else torch.empty_like(counted)
        grid, tiles = _tiles(x)
        _lrn_backward[grid](
            grad, x, counted, x if order is None else order, inverse, grad_x,
            grad_x if grad_counted is None else grad_counted, x.numel() // x.shape[1], x.shape[1], alpha, beta,
            ORDERED=order is not None, **window, **tiles,
        )  # fmt: skip
        return grad_x, grad_counted, None, None, None, None, None


def _tiles(x: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs, and the rows and channels of each."""
    channels = x.shape[1]
    block = min(64, max(16, triton.next_power_of_2(channels)))
    rows = TILE // block
    grid = (triton.cdiv(x.numel() // channels, rows), triton.cdiv(channels, block))
    return grid, {"ROWS": rows, "BLOCK": block}


def lrn(x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """Each value over a power of `k` and `alpha` times the mean square in its window of `size` channels."""
    y: Tensor = _FusedLrn.apply(x, None, None, size, alpha, beta, k)  # type: ignore[no-untyped-call]
    return y


def ordered_lrn(x: Tensor, counted: Tensor, order: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """The same with the channels in this order, where the squares are those of `counted`; y is in x's own order."""
    y: Tensor = _FusedLrn.apply(x, counted, order, size, alpha, beta, k)  # type: ignore[no-untyped-call]
    return y
