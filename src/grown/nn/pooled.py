"""Max pooling on a CPU, by PyTorch's code for channels that are last in memory: the same values, much sooner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from grown.nn.accelerate import channels_first


def max_pool(x: Tensor, *window: Any) -> Tensor:
    """What `F.max_pool2d(x, *window)` gives, with channels first in memory, as all that trains on a CPU has them."""
    y: Tensor = _MaxPool.apply(x, *window)  # type: ignore[no-untyped-call]
    return y


class _MaxPool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *window: Any) -> Tensor:
        last = x.contiguous(memory_format=torch.channels_last)
        y, where = torch.ops.aten.max_pool2d_with_indices(last, *window)
        if ctx.needs_input_grad[0]:
            ctx.window = window
            ctx.save_for_backward(x, channels_first(where))
        return channels_first(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, where = ctx.saved_tensors
        grad = torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *ctx.window, where)
        return grad, *(None for _ in ctx.window)
