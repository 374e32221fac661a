"""Batch norm, what is added to it, and ReLU or none, in two passes each way."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function


@triton.jit
def _tile(start, end, column, channels, ROWS: tl.constexpr):
    """Where a tile's values lie, and which of them are there."""
    row = start + tl.arange(0, ROWS)
    return row[:, None] * channels + column[None, :], (row < end)[:, None] & (column < channels)[None, :]


@triton.jit
def _keep(sums, first, second, column, channels):
    """Keep a stretch's two sums, each in its half of (2, stretches, channels)."""
    at = sums + tl.program_id(1) * channels + column
    tl.store(at, tl.sum(first, 0), mask=column < channels)
    tl.store(at + tl.num_programs(1) * channels, tl.sum(second, 0), mask=column < channels)


@triton.jit
def _totals(sums, stretches, column, channels, PARTS: tl.constexpr):
    """Both sums over all stretches."""
    at, there = _tile(0, stretches, column, channels, PARTS)
    first = tl.sum(tl.load(sums + at, mask=there, other=0.0), 0)
    return first, tl.sum(tl.load(sums + stretches * channels + at, mask=there, other=0.0), 0)


@triton.jit
def _norm_sums(x, sums, rows, channels, per, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums and sums of squares over one stretch of rows, of differences to the first row: (2, stretches, channels).

    Differences, since the variance of values far from zero would drown in their squares' rounding.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stretch = tl.program_id(1)
    inside = column < channels
    pivot = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    second = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    end = tl.minimum((stretch + 1) * per, rows)
    for start in range(stretch * per, end, ROWS):
        at, here = _tile(start, end, column, channels, ROWS)
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32) - pivot[None, :]
        value = tl.where(here, value, 0.0)
        first += value
        second += value * value
    _keep(sums, first, second, column, channels)


@triton.jit
def _norm_apply(
    x, added, y, sums, weight, bias, mean_out, scale_out, running_mean, running_var, rows, channels, per, eps, momentum,
    stretches, ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, HAS_ADDED: tl.constexpr,
    HAS_RELU: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stretch = tl.program_id(1)
    inside = column < channels
    first, second = _totals(sums, stretches, column, channels, PARTS)
    above = first / rows
    square = second / rows
    mean = tl.load(x + column, mask=inside, other=0.0).to(tl.float32) + above
    variance = tl.maximum(square - above * above, 0.0)
    scale = 1.0 / tl.sqrt(variance + eps)
    if stretch == 0:
        tl.store(mean_out + column, mean, mask=inside)
        tl.store(scale_out + column, scale, mask=inside)
        old = tl.load(running_mean + column, mask=inside, other=0.0)
        tl.store(running_mean + column, old + momentum * (mean - old), mask=inside)
        old = tl.load(running_var + column, mask=inside, other=0.0)
        unbiased = variance * rows / tl.maximum(rows - 1, 1)
        tl.store(running_var + column, old + momentum * (unbiased - old), mask=inside)
    gain = tl.load(weight + column, mask=inside, other=0.0) * scale
    offset = tl.load(bias + column, mask=inside, other=0.0) - mean * gain
    end = tl.minimum((stretch + 1) * per, rows)
    for start in range(stretch * per, end, ROWS):
        at, here = _tile(start, end, column, channels, ROWS)
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
        if HAS_ADDED:
            value += tl.load(added + at, mask=here, other=0.0).to(tl.float32)
        if HAS_RELU:
            value = tl.where(value < 0.0, 0.0, value)  # what is not a number stays visible
        tl.store(y + at, value.to(y.dtype.element_ty), mask=here)


@triton.jit
def _norm_grad_sums(
    grad, x, y, grad_added, mean, scale, weight, bias, sums, rows, channels, per,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, HAS_ADDED: tl.constexpr, HAS_RELU: tl.constexpr,
):  # fmt: skip
    """Where something was added, its gradient too: what the ReLU lets through."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stretch = tl.program_id(1)
    inside = column < channels
    middle = tl.load(mean + column, mask=inside, other=0.0)
    factor = tl.load(scale + column, mask=inside, other=0.0)
    gain = tl.load(weight + column, mask=inside, other=0.0) * factor
    offset = tl.load(bias + column, mask=inside, other=0.0) - middle * gain
    first = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    second = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    end = tl.minimum((stretch + 1) * per, rows)
    for start in range(stretch * per, end, ROWS):
        at, here = _tile(start, end, column, channels, ROWS)
        slope = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        if HAS_ADDED:
            slope = tl.where(tl.load(y + at, mask=here, other=0.0).to(tl.float32) > 0, slope, 0.0)
            tl.store(grad_added + at, slope.to(grad_added.dtype.element_ty), mask=here)
        elif HAS_RELU:
            slope = tl.where(value * gain[None, :] + offset[None, :] > 0, slope, 0.0)
        first += slope
        second += slope * (value - middle[None, :]) * factor[None, :]
    _keep(sums, first, second, column, channels)


@triton.jit
def _norm_grad_apply(
    grad, x, mean, scale, weight, bias, sums, grad_x, grad_weight, grad_bias, rows, channels, per, stretches,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, HAS_RELU: tl.constexpr,
):  # fmt: skip
    """`HAS_RELU`: the gradient has not gone through the ReLU yet, as it has where something was added."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stretch = tl.program_id(1)
    inside = column < channels
    first, second = _totals(sums, stretches, column, channels, PARTS)
    if stretch == 0:
        tl.store(grad_bias + column, first, mask=inside)
        tl.store(grad_weight + column, second, mask=inside)
    middle = tl.load(mean + column, mask=inside, other=0.0)
    factor = tl.load(scale + column, mask=inside, other=0.0)
    gain = tl.load(weight + column, mask=inside, other=0.0) * factor
    offset = tl.load(bias + column, mask=inside, other=0.0) - middle * gain
    average = first / rows
    slant = second / rows
    end = tl.minimum((stretch + 1) * per, rows)
    for start in range(stretch * per, end, ROWS):
        at, here = _tile(start, end, column, channels, ROWS)
        slope = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        if HAS_RELU:
            slope = tl.where(value * gain[None, :] + offset[None, :] > 0, slope, 0.0)
        normal = (value - middle[None, :]) * factor[None, :]
        value = gain[None, :] * (slope - average[None, :] - normal * slant[None, :])
        tl.store(grad_x + at, value.to(grad_x.dtype.element_ty), mask=here)


def _tiles(rows: int, channels: int) -> tuple[tuple[int, int], int, int, int]:
    """Programs, rows a tile, channels a tile and rows a stretch, so that some 512 programs share the work."""
    block = min(32, max(16, triton.next_power_of_2(channels)))
    tile = 2048 // block
    across = triton.cdiv(channels, block)
    stretches = max(1, min(256, 512 // across, triton.cdiv(rows, tile)))
    per = triton.cdiv(triton.cdiv(rows, stretches), tile) * tile
    return (across, triton.cdiv(rows, per)), tile, block, per


class _FusedNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        added: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        eps: float,
        momentum: float,
        relu: bool,
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        added = None if added is None else added.contiguous(memory_format=torch.channels_last)
        channels = x.shape[1]
        rows = x.numel() // channels
        grid, tile, block, per = _tiles(rows, channels)
        sums = torch.empty((2, grid[1], channels), device=x.device)
        mean, scale = torch.empty(channels, device=x.device), torch.empty(channels, device=x.device)
        y = torch.empty_like(x)
        parts = triton.next_power_of_2(grid[1])
        _norm_sums[grid](x, sums, rows, channels, per, ROWS=tile, BLOCK=block)
        _norm_apply[grid](
            x, added, y, sums, weight, bias, mean, scale, running_mean, running_var, rows, channels, per, eps, momentum,
            grid[1], ROWS=tile, BLOCK=block, PARTS=parts, HAS_ADDED=added is not None, HAS_RELU=relu,
        )  # fmt: skip
        ctx.relu = relu
        ctx.save_for_backward(x, y if added is not None else None, weight, bias, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, mean, scale = ctx.saved_tensors
        has_added = y is not None
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        channels = x.shape[1]
        rows = x.numel() // channels
        grid, tile, block, per = _tiles(rows, channels)
        sums = torch.empty((2, grid[1], channels), device=x.device)
        grad_x = torch.empty_like(x)
        grad_added = torch.empty_like(y) if has_added else None
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(weight)
        parts = triton.next_power_of_2(grid[1])
        _norm_grad_sums[grid](
            grad, x, y, grad_added, mean, scale, weight, bias, sums, rows, channels, per,
            ROWS=tile, BLOCK=block, HAS_ADDED=has_added, HAS_RELU=ctx.relu,
        )  # fmt: skip
        _norm_grad_apply[grid](
            grad_added if has_added else grad, x, mean, scale, weight, bias, sums, grad_x, grad_weight, grad_bias,
            rows, channels, per, grid[1], ROWS=tile, BLOCK=block, PARTS=parts, HAS_RELU=ctx.relu and not has_added,
        )  # fmt: skip
        return grad_x, grad_added, grad_weight, grad_bias, None, None, None, None, None


def norm_relu(x: Tensor, norm: Any, added: Tensor | None = None, *, relu: bool = True) -> Tensor:
    """Batch norm in training mode, with its running statistics, what is added to it, and ReLU behind both."""
    if added is not None and not relu:
        raise ValueError("what is added to a norm comes with a ReLU behind it")
    y: Tensor = _FusedNorm.apply(  # type: ignore[no-untyped-call]
        x, added, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps, norm.momentum, relu
    )
    return y
