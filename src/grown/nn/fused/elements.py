"""Masks with a bit for each weight: a layer's kernels in one pass each way, and the score at which a mask cuts."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

BLOCK = 1024
SELECT_BLOCK = 2048
PROGRAMS = 132  # that read a layer's scores, at most: one for each multiprocessor of a large GPU


@triton.jit
def _effective(weight, frozen, trainable, at, inside, IS_SPLIT: tl.constexpr):
    value = tl.load(weight + at, mask=inside, other=0.0)
    if IS_SPLIT:
        learns = tl.load(trainable + at, mask=inside, other=0)
        value = tl.where(learns != 0, value, tl.load(frozen + at, mask=inside, other=0.0))
    return value


@triton.jit
def _elements_forward(
    weight, frozen, trainable, scores, cut, out, count,
    BLOCK: tl.constexpr, IS_SPLIT: tl.constexpr, HAS_SCORES: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = _effective(weight, frozen, trainable, at, inside, IS_SPLIT)
    if HAS_SCORES:
        score = tl.load(scores + at, mask=inside, other=0.0)
        value *= (score - tl.load(cut) > 0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _elements_backward(
    grad, weight, frozen, trainable, scores, cut, grad_weight, grad_scores, count,
    BLOCK: tl.constexpr, IS_SPLIT: tl.constexpr, HAS_SCORES: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_SCORES:
        value = _effective(weight, frozen, trainable, at, inside, IS_SPLIT)
        tl.store(grad_scores + at, slope * value, mask=inside)
        score = tl.load(scores + at, mask=inside, other=0.0)
        slope *= (score - tl.load(cut) > 0).to(tl.float32)
    if IS_SPLIT:
        learns = tl.load(trainable + at, mask=inside, other=0)
        tl.store(grad_weight + at, tl.where(learns != 0, slope, 0.0), mask=inside)


class _FusedElements(Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        """Takes what `fused_elements` does."""
        weight, frozen, trainable, scores, cut, dtype = given
        out: Tensor = torch.empty_like(weight, dtype=dtype)
        ctx.save_for_backward(weight, frozen, trainable, scores, cut)
        ctx.kinds = {"IS_SPLIT": trainable is not None, "HAS_SCORES": scores is not None}
        _elements_forward[_programs(weight)](
            weight, frozen, trainable, scores, cut, out, weight.numel(), BLOCK=BLOCK, **ctx.kinds
        )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, frozen, trainable, scores, cut = ctx.saved_tensors
        grad = grads[0]
        if grad.stride() != weight.stride():
            grad = torch.empty_like(weight, dtype=grad.dtype).copy_(grad)
        grad_weight = torch.empty_like(weight) if trainable is not None else None
        grad_scores = torch.empty_like(scores) if scores is not None else None
        _elements_backward[_programs(weight)](
            grad, weight, frozen, trainable, scores, cut, grad_weight, grad_scores, weight.numel(),
            BLOCK=BLOCK, **ctx.kinds,
        )  # fmt: skip
        return grad_weight, None, None, grad_scores, None, None


def _programs(weight: Tensor) -> tuple[int]:
    return (triton.cdiv(weight.numel(), BLOCK),)


def fused_elements(
    weight: Tensor,
    frozen: Tensor | None,
    trainable: Tensor | None,
    scores: Tensor | None,
    cut: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """A layer's kernels in the precision of the convolution: the weight where it is trainable, else what is frozen,
    and 0 where a score is not above the cut. Without `trainable` the weight does not learn. All lie alike in memory."""
    kernels: Tensor = _FusedElements.apply(  # type: ignore[no-untyped-call]
        weight, frozen, trainable, scores, cut, dtype
    )
    return kernels


# --- the score at a rank: its bits are found from the top, eight at a time, by counting ------------------------------


@triton.jit
def _found_so_far(counts, rank, LEVELS: tl.constexpr):
    """The top bits of the key at this rank, and its rank among the keys that have them."""
    bins = tl.arange(0, 256)
    prefix = tl.zeros([], dtype=tl.uint32)
    for level in tl.static_range(LEVELS):
        here = tl.load(counts + level * 256 + bins)
        digit = tl.sum((tl.cumsum(here, 0) < rank).to(tl.int32), 0)
        rank -= tl.sum(tl.where(bins < digit, here, 0), 0)
        prefix = (prefix << 8) | digit.to(tl.uint32)
    return prefix, rank


@triton.jit
def _count_digits(
    scores, counts, rank, size, LEVEL: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * (STEPS * BLOCK)
    bins = tl.arange(0, 256)
    found = tl.zeros([256], dtype=tl.int32)
    prefix, _ = _found_so_far(counts, rank, LEVEL)
    for step in range(STEPS):
        at = start + step * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        bits = tl.load(scores + at, mask=inside, other=0.0).to(tl.uint32, bitcast=True)
        key = tl.where((bits >> 31) == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)  # in the order of the scores
        if LEVEL > 0:
            inside &= (key >> (32 - 8 * LEVEL)) == prefix
        digit = ((key >> (24 - 8 * LEVEL)) & 255).to(tl.int32)
        found += tl.histogram(tl.where(inside, digit, 0), 256)
        found -= tl.where(bins == 0, tl.sum((inside == 0).to(tl.int32), 0), 0)
    tl.atomic_add(counts + LEVEL * 256 + bins, found, mask=found > 0)


@triton.jit
def _score_at(counts, rank, out):
    key, _ = _found_so_far(counts, rank, 4)
    bits = tl.where((key >> 31) == 1, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    tl.store(out, bits.to(tl.float32, bitcast=True))


def smallest(scores: Tensor, rank: int) -> Tensor:
    """The score at this rank from below, counted from 1: exactly, on the device, for scores without gaps in memory."""
    counts = torch.zeros(4 * 256, dtype=torch.int32, device=scores.device)
    out = torch.empty((), device=scores.device)
    size = scores.numel()
    steps = triton.next_power_of_2(triton.cdiv(size, PROGRAMS * SELECT_BLOCK))  # few programs to compile
    for level in range(4):
        _count_digits[(triton.cdiv(size, steps * SELECT_BLOCK),)](
            scores, counts, rank, size, LEVEL=level, BLOCK=SELECT_BLOCK, STEPS=steps
        )
    _score_at[(1,)](counts, rank, out)
    return out
