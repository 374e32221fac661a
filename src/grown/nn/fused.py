"""Triton kernels for a GPU: masked kernels in one pass each way, and batch norm with ReLU in two.

Each stands for a few lines of plain PyTorch (`masks.py`, `nn.BatchNorm2d` and `nn.ReLU`), which remain the reference
and run wherever Triton does not. Weights and images are channels-last in memory: (out, k, in) and (n, h, w, c).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

# A kernel's code says: 0, never used; 1, always used; 2, its score decides.


@triton.jit
def _mask_forward(
    frozen, weight, scores, codes, gate, out, inputs,
    K: tl.constexpr, BLOCK: tl.constexpr, HAS_FROZEN: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_SCORES: tl.constexpr, HAS_GATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inputs
    code = tl.load(codes + row * inputs + column, mask=inside, other=0)
    on = (code == 1).to(tl.float32)
    if HAS_SCORES:
        score = tl.load(scores + row * inputs + column, mask=inside, other=-1.0)
        on += ((code == 2) & (score > 0)).to(tl.float32)
    if HAS_GATE:
        on *= tl.load(gate + column, mask=inside, other=0.0)
    for k in tl.static_range(K):
        at = (row * K + k) * inputs + column
        value = tl.zeros([BLOCK], dtype=tl.float32)
        if HAS_FROZEN:
            value += tl.load(frozen + at, mask=inside, other=0.0)
        if HAS_WEIGHT:
            value += tl.load(weight + at, mask=inside, other=0.0)
        tl.store(out + at, (value * on).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _mask_backward(
    grad, frozen, weight, scores, codes, trainable, gate, grad_weight, grad_scores, grad_gates, inputs,
    K: tl.constexpr, BLOCK: tl.constexpr, HAS_FROZEN: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_SCORES: tl.constexpr, HAS_GATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inputs
    here = row * inputs + column
    code = tl.load(codes + here, mask=inside, other=0)
    kernel_on = (code == 1).to(tl.float32)
    if HAS_SCORES:
        score = tl.load(scores + here, mask=inside, other=-1.0)
        kernel_on += ((code == 2) & (score > 0)).to(tl.float32)
    gate_on = tl.full([BLOCK], 1.0, dtype=tl.float32)
    if HAS_GATE:
        gate_on = tl.load(gate + column, mask=inside, other=0.0)
    share = kernel_on * gate_on
    if HAS_WEIGHT:
        share *= tl.load(trainable + here, mask=inside, other=0.0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(K):
        at = (row * K + k) * inputs + column
        slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.zeros([BLOCK], dtype=tl.float32)
        if HAS_FROZEN:
            value += tl.load(frozen + at, mask=inside, other=0.0)
        if HAS_WEIGHT:
            value += tl.load(weight + at, mask=inside, other=0.0)
            tl.store(grad_weight + at, slope * share, mask=inside)
        total += slope * value
    if HAS_SCORES:
        tl.store(grad_scores + here, total * gate_on * (code == 2).to(tl.float32), mask=inside)
    if HAS_GATE:
        tl.store(grad_gates + here, total * kernel_on, mask=inside)


def _grid(kernels: Tensor) -> tuple[tuple[int, int], int, int]:
    """Programs, block and weights a kernel for kernels (out, in, *k) that lie channels-last in memory."""
    outputs, inputs = kernels.shape[:2]
    size = kernels[0, 0].numel()
    block = min(256, max(16, triton.next_power_of_2(inputs)))
    return (outputs, triton.cdiv(inputs, block)), block, size


class _FusedMask(Function):
    @staticmethod
    def forward(
        ctx: Any,
        frozen: Tensor | None,
        weight: Tensor | None,
        scores: Tensor | None,
        codes: Tensor,
        trainable: Tensor,
        gate: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        some = frozen if frozen is not None else weight
        if some is None:
            raise ValueError("a layer needs frozen kernels or trainable ones")
        out = torch.empty_like(some, dtype=dtype)
        grid, block, size = _grid(some)
        flags = (frozen is not None, weight is not None, scores is not None, gate is not None)
        _mask_forward[grid](
            frozen, weight, scores, codes, gate, out, some.shape[1],
            K=size, BLOCK=block, HAS_FROZEN=flags[0], HAS_WEIGHT=flags[1], HAS_SCORES=flags[2], HAS_GATE=flags[3],
        )  # fmt: skip
        ctx.save_for_backward(frozen, weight, scores, codes, trainable, gate)
        ctx.flags = flags
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        frozen, weight, scores, codes, trainable, gate = ctx.saved_tensors
        some = frozen if frozen is not None else weight
        grad = grads[0]
        if grad.stride() != some.stride():
            grad = torch.empty_like(some, dtype=grad.dtype).copy_(grad)
        grid, block, size = _grid(some)
        grad_weight = torch.empty_like(weight) if weight is not None else None
        grad_scores = torch.empty_like(scores) if scores is not None else None
        grad_gates = torch.empty(some.shape[:2], device=some.device) if gate is not None else None
        has_frozen, has_weight, has_scores, has_gate = ctx.flags
        _mask_backward[grid](
            grad, frozen, weight, scores, codes, trainable, gate, grad_weight, grad_scores, grad_gates, some.shape[1],
            K=size, BLOCK=block, HAS_FROZEN=has_frozen, HAS_WEIGHT=has_weight, HAS_SCORES=has_scores,
            HAS_GATE=has_gate,
        )  # fmt: skip
        grad_gate = grad_gates.sum(0) if grad_gates is not None else None
        return None, grad_weight, grad_scores, None, None, grad_gate, None


def fused_kernels(
    frozen: Tensor | None,
    weight: Tensor | None,
    scores: Tensor | None,
    codes: Tensor,
    trainable: Tensor,
    gate: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """A layer's effective kernels, masked by scores and gate, in the precision of the convolution."""
    kernels: Tensor = _FusedMask.apply(  # type: ignore[no-untyped-call]
        frozen, weight, scores, codes, trainable, gate, dtype
    )
    return kernels


# --- batch norm and ReLU ---------------------------------------------------------------------------------------------


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
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * channels + column[None, :]
        here = (row < end)[:, None] & inside[None, :]
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32) - pivot[None, :]
        value = tl.where(here, value, 0.0)
        first += value
        second += value * value
    count = tl.num_programs(1)
    tl.store(sums + stretch * channels + column, tl.sum(first, 0), mask=inside)
    tl.store(sums + (count + stretch) * channels + column, tl.sum(second, 0), mask=inside)


@triton.jit
def _norm_apply(
    x, y, sums, weight, bias, mean_out, scale_out, running_mean, running_var, rows, channels, per, eps, momentum,
    stretches, ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stretch = tl.program_id(1)
    inside = column < channels
    part = tl.arange(0, PARTS)
    pieces = part[:, None] * channels + column[None, :]
    there = (part < stretches)[:, None] & inside[None, :]
    above = tl.sum(tl.load(sums + pieces, mask=there, other=0.0), 0) / rows
    square = tl.sum(tl.load(sums + stretches * channels + pieces, mask=there, other=0.0), 0) / rows
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
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * channels + column[None, :]
        here = (row < end)[:, None] & inside[None, :]
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32) * gain[None, :] + offset[None, :]
        tl.store(y + at, tl.maximum(value, 0.0).to(y.dtype.element_ty), mask=here)


@triton.jit
def _norm_grad_sums(
    grad, x, y, mean, scale, sums, rows, channels, per, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stretch = tl.program_id(1)
    inside = column < channels
    middle = tl.load(mean + column, mask=inside, other=0.0)
    factor = tl.load(scale + column, mask=inside, other=0.0)
    first = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    second = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    end = tl.minimum((stretch + 1) * per, rows)
    for start in range(stretch * per, end, ROWS):
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * channels + column[None, :]
        here = (row < end)[:, None] & inside[None, :]
        slope = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        slope = tl.where(tl.load(y + at, mask=here, other=0.0).to(tl.float32) > 0, slope, 0.0)
        normal = (tl.load(x + at, mask=here, other=0.0).to(tl.float32) - middle[None, :]) * factor[None, :]
        first += slope
        second += slope * normal
    count = tl.num_programs(1)
    tl.store(sums + stretch * channels + column, tl.sum(first, 0), mask=inside)
    tl.store(sums + (count + stretch) * channels + column, tl.sum(second, 0), mask=inside)


@triton.jit
def _norm_grad_apply(
    grad, x, y, mean, scale, weight, sums, grad_x, grad_weight, grad_bias, rows, channels, per, stretches,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stretch = tl.program_id(1)
    inside = column < channels
    part = tl.arange(0, PARTS)
    pieces = part[:, None] * channels + column[None, :]
    there = (part < stretches)[:, None] & inside[None, :]
    first = tl.sum(tl.load(sums + pieces, mask=there, other=0.0), 0)
    second = tl.sum(tl.load(sums + stretches * channels + pieces, mask=there, other=0.0), 0)
    if stretch == 0:
        tl.store(grad_bias + column, first, mask=inside)
        tl.store(grad_weight + column, second, mask=inside)
    middle = tl.load(mean + column, mask=inside, other=0.0)
    factor = tl.load(scale + column, mask=inside, other=0.0)
    gain = tl.load(weight + column, mask=inside, other=0.0) * factor
    average = first / rows
    slant = second / rows
    end = tl.minimum((stretch + 1) * per, rows)
    for start in range(stretch * per, end, ROWS):
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * channels + column[None, :]
        here = (row < end)[:, None] & inside[None, :]
        slope = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        slope = tl.where(tl.load(y + at, mask=here, other=0.0).to(tl.float32) > 0, slope, 0.0)
        normal = (tl.load(x + at, mask=here, other=0.0).to(tl.float32) - middle[None, :]) * factor[None, :]
        value = gain[None, :] * (slope - average[None, :] - normal * slant[None, :])
        tl.store(grad_x + at, value.to(grad_x.dtype.element_ty), mask=here)


def _tiles(rows: int, channels: int) -> tuple[tuple[int, int], int, int, int]:
    """Programs, rows a tile, channels a tile and rows a stretch, so that some 512 programs share the work."""
    block = min(64, max(16, triton.next_power_of_2(channels)))
    tile = 2048 // block
    across = triton.cdiv(channels, block)
    stretches = max(1, min(128, 512 // across, triton.cdiv(rows, tile)))
    per = triton.cdiv(triton.cdiv(rows, stretches), tile) * tile
    return (across, triton.cdiv(rows, per)), tile, block, per


class _FusedNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        eps: float,
        momentum: float,
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        channels = x.shape[1]
        rows = x.numel() // channels
        grid, tile, block, per = _tiles(rows, channels)
        sums = torch.empty((2, grid[1], channels), device=x.device)
        mean, scale = torch.empty(channels, device=x.device), torch.empty(channels, device=x.device)
        y = torch.empty_like(x)
        parts = triton.next_power_of_2(grid[1])
        _norm_sums[grid](x, sums, rows, channels, per, ROWS=tile, BLOCK=block)
        _norm_apply[grid](
            x, y, sums, weight, bias, mean, scale, running_mean, running_var, rows, channels, per, eps, momentum,
            grid[1], ROWS=tile, BLOCK=block, PARTS=parts,
        )  # fmt: skip
        ctx.save_for_backward(x, y, weight, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, mean, scale = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        channels = x.shape[1]
        rows = x.numel() // channels
        grid, tile, block, per = _tiles(rows, channels)
        sums = torch.empty((2, grid[1], channels), device=x.device)
        grad_x = torch.empty_like(x)
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(weight)
        parts = triton.next_power_of_2(grid[1])
        _norm_grad_sums[grid](grad, x, y, mean, scale, sums, rows, channels, per, ROWS=tile, BLOCK=block)
        _norm_grad_apply[grid](
            grad, x, y, mean, scale, weight, sums, grad_x, grad_weight, grad_bias, rows, channels, per, grid[1],
            ROWS=tile, BLOCK=block, PARTS=parts,
        )  # fmt: skip
        return grad_x, grad_weight, grad_bias, None, None, None, None


def norm_relu(x: Tensor, norm: Any) -> Tensor:
    """Batch norm in training mode, with its running statistics, and ReLU behind it."""
    y: Tensor = _FusedNorm.apply(  # type: ignore[no-untyped-call]
        x, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps, norm.momentum
    )
    return y
