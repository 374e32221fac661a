"""Work beside the main stream of a GPU: small kernels that wait for nobody run while the chain of activations goes on.

In a small network a kernel's latency counts more than its arithmetic. What a step computes is one long chain, layer by
layer forward and back; masks and weight gradients hang off it. With a side stream those run next to the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_side: ContextVar[Any] = ContextVar("side", default=None)
Pair = tuple[int, int]


@contextmanager
def beside(stream: Any) -> Iterator[None]:
    """Let masks and weight gradients of what is computed inside run on this stream; None: nothing does."""
    token = _side.set(stream)
    try:
        yield
    finally:
        _side.reset(token)


def is_on() -> bool:
    """Whether there is a side stream now."""
    return _side.get() is not None


def follow(*tensors: Tensor) -> None:
    """Let the side stream wait for what the main one has made so far, of which it reads these; nothing without one."""
    side = _side.get()
    if side is None:
        return
    side.wait_stream(torch.cuda.current_stream())
    for tensor in tensors:
        tensor.record_stream(side)


def run(make: Callable[[], Tensor]) -> Tensor:
    """Make a layer's kernels on the side stream, for which the main stream waits; it reads what it followed."""
    side, main = _side.get(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        made = make()
    main.wait_stream(side)
    made.record_stream(main)
    return made


def convolve(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """A convolution whose weight gradient is computed on the side stream."""
    y: Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
        x.to(weight.dtype), weight, stride, padding, dilation, _side.get()
    )
    return y


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair, side: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = (stride, padding, dilation, side)
        return torch.conv2d(x, weight, None, stride, padding, dilation)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, side = ctx.how
        grad = grads[0].contiguous(memory_format=torch.channels_last)

        def half(of_x: bool) -> Any:
            """The gradient of the inputs, or of the weights."""
            return torch.ops.aten.convolution_backward(
                grad, x, weight, None, stride, padding, dilation, False, [0, 0], 1, [of_x, not of_x, False]
            )

        # What gives the weights their gradient runs on the side stream too, so nothing has to wait for this.
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            grad_weight = half(of_x=False)[1]
        for tensor in (grad, x):
            tensor.record_stream(side)
        grad_x = half(of_x=True)[0] if ctx.needs_input_grad[0] else None
        return grad_x, grad_weight, None, None, None, None
