"""Max pooling, in one pass each way."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function


@triton.jit
def _pool_forward(
    x, y, index, count, channels, height, width, out_height, out_width,
    KY: tl.constexpr, KX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest value of each window, the first of equal ones, and which of the window's it is."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = (row < count)[:, None] & (column < channels)[None, :]
    image = row // (out_height * out_width)
    top = (row // out_width) % out_height * SY - PY
    left = row % out_width * SX - PX
    best = tl.full([ROWS, BLOCK], float("-inf"), dtype=tl.float32)
    found = tl.zeros([ROWS, BLOCK], dtype=tl.int32)
    for ky in tl.static_range(KY):
        for kx in tl.static_range(KX):
            inside = (top + ky >= 0) & (top + ky < height) & (left + kx >= 0) & (left + kx < width)
            at = ((image * height + top + ky) * width + left + kx).to(tl.int64)
            there = inside[:, None] & here
            value = tl.load(x + at[:, None] * channels + column[None, :], mask=there, other=float("-inf"))
            value = value.to(tl.float32)
            better = (value > best) | (value != value)  # what is not a number goes through, as in PyTorch
            best = tl.where(better, value, best)
            found = tl.where(better, ky * KX + kx, found)
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    tl.store(y + at, best.to(y.dtype.element_ty), mask=here)
    tl.store(index + at, found.to(tl.uint8), mask=here)


@triton.jit
def _pool_backward(
    grad, index, grad_x, count, channels, height, width, out_height, out_width,
    KY: tl.constexpr, KX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    OVER_Y: tl.constexpr, OVER_X: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A value's gradient is the sum over the windows in which it was the largest, OVER_Y x OVER_X of them at most."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = (row < count)[:, None] & (column < channels)[None, :]
    image = row // (height * width)
    y = (row // width) % height + PY
    x = row % width + PX
    total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for over_y in tl.static_range(OVER_Y):
        for over_x in tl.static_range(OVER_X):
            window_y = y // SY - over_y
            window_x = x // SX - over_x
            ky = y - window_y * SY
            kx = x - window_x * SX
            inside = (window_y >= 0) & (window_y < out_height) & (window_x >= 0) & (window_x < out_width)
            there = (inside & (ky < KY) & (kx < KX))[:, None] & here
            at = ((image * out_height + window_y) * out_width + window_x).to(tl.int64)
            at = at[:, None] * channels + column[None, :]
            mine = tl.load(index + at, mask=there, other=255).to(tl.int32) == (ky * KX + kx)[:, None]
            slope = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
            total += tl.where(mine & there, slope, 0.0)
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    tl.store(grad_x + at, total.to(grad_x.dtype.element_ty), mask=here)


def _tiles(rows: int, channels: int, values: int) -> tuple[tuple[int, int], int, int]:
    """Programs, rows a tile and channels a tile, for tiles of so many values."""
    block = min(64, max(16, triton.next_power_of_2(channels)))
    tile = values // block
    return (triton.cdiv(rows, tile), triton.cdiv(channels, block)), tile, block


class _FusedPool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int]) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        count, channels, height, width = x.shape
        sides = [(s + 2 * p - k) // t + 1 for s, k, t, p in zip((height, width), kernel, stride, pad, strict=True)]
        y = torch.empty((count, channels, *sides), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        index = torch.empty_like(y, dtype=torch.uint8)
        rows = count * sides[0] * sides[1]
        grid, tile, block = _tiles(rows, channels, 1024)
        _pool_forward[grid](
            x, y, index, rows, channels, height, width, *sides,
            KY=kernel[0], KX=kernel[1], SY=stride[0], SX=stride[1], PY=pad[0], PX=pad[1], ROWS=tile, BLOCK=block,
        )  # fmt: skip
        ctx.save_for_backward(index)
        ctx.window = (tuple(x.shape), kernel, stride, pad)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        shape, kernel, stride, pad = ctx.window
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)
        count, channels, height, width = shape
        rows = count * height * width
        grid, tile, block = _tiles(rows, channels, 2048)
        _pool_backward[grid](
            grad, index, grad_x, rows, channels, height, width, *grad.shape[2:],
            KY=kernel[0], KX=kernel[1], SY=stride[0], SX=stride[1], PY=pad[0], PX=pad[1],
            OVER_Y=triton.cdiv(kernel[0], stride[0]), OVER_X=triton.cdiv(kernel[1], stride[1]), ROWS=tile, BLOCK=block,
        )  # fmt: skip
        return grad_x, None, None, None


def max_pool(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """The largest value of each window; windows reach into `padding` cells around the image, which never count."""
    y: Tensor = _FusedPool.apply(x, kernel, stride, padding)  # type: ignore[no-untyped-call]
    return y
