"""A layer's masked kernels, in one pass each way."""

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
