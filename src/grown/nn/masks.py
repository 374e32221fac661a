"""Masks at kernel resolution: hard in the forward pass, straight-through in the backward pass.

The scores of the selective mask (frozen kernels) and of the attentive mask (trainable kernels) live in one (out, in)
tensor, since no kernel is both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class _Hard(Function):
    """`score > 0` where a mask is learned, a constant elsewhere; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, learned: Tensor | None, constant: Tensor | None) -> Tensor:
        ctx.save_for_backward(learned)
        hard = (scores > 0).to(scores.dtype)
        if learned is None or constant is None:
            return hard
        return torch.where(learned, hard, constant)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (learned,) = ctx.saved_tensors
        return (grads[0] if learned is None else grads[0] * learned), None, None


def hard_mask(scores: Tensor, learned: Tensor | None = None, constant: Tensor | None = None) -> Tensor:
    """The deterministic straight-through mask."""
    mask: Tensor = _Hard.apply(scores, learned, constant)  # type: ignore[no-untyped-call]
    return mask


@dataclass
class Noise:
    """The state of the Gumbel-sigmoid masks: temperature, how much noise, and where it comes from."""

    temperature: float
    scale: float
    generator: torch.Generator | None = None


def gumbel_mask(scores: Tensor, noise: Noise, training: bool) -> Tensor:
    """Eq. 6, corrected: p = sigmoid((m + g0 - g1) / T), 1 where p > 0.5; no noise in evaluation.

    As printed, Eq. 6 weighs log sigmoid(m) against 0, so that without noise p < 0.5 always and every mask is off.
    """
    if training and noise.scale > 0:
        uniform = torch.rand(scores.shape, generator=noise.generator, device=scores.device)
        uniform = uniform.clamp(1e-6, 1 - 1e-6)
        logistic = uniform.log() - (1 - uniform).log()  # g0 - g1, two Gumbel variables, is one logistic one
        scores = scores + noise.scale * logistic
    p = torch.sigmoid(scores / noise.temperature)
    return (p > 0.5).to(p.dtype) + (p - p.detach())  # in this order the sum is exactly 0 or 1


def soften(hard: Tensor, scores: Tensor, frozen: Tensor) -> Tensor:
    """The soft form of KSM: a picked kernel counts 1, every other frozen one 0.5 x its normalised score."""
    return hard + (1 - hard.detach()) * soft_values(scores, frozen)


def soft_values(scores: Tensor, frozen: Tensor) -> Tensor:
    """What an unpicked frozen kernel is multiplied by in the soft form; it takes no gradient."""
    plain = scores.detach()
    low, high = plain.min(), plain.max()
    return torch.where(frozen, 0.5 * (plain - low) / (high - low).clamp_min(1e-12), torch.zeros_like(plain))


class _MaskedKernels(Function):
    """(frozen + weight) * mask in one pass; the weight's gradient stays off the frozen kernels."""

    @staticmethod
    def forward(
        ctx: Any, frozen: Tensor | None, weight: Tensor | None, mask: Tensor, trainable: Tensor | None
    ) -> Tensor:
        base = weight if frozen is None else (frozen if weight is None else frozen + weight)
        if base is None:
            raise ValueError("a layer needs frozen kernels or trainable ones")
        ctx.save_for_backward(base, mask, trainable)
        return base * mask.view(*mask.shape, *([1] * (base.ndim - 2)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        base, mask, trainable = ctx.saved_tensors
        (grad,) = grads
        grad_weight = grad_mask = None
        if ctx.needs_input_grad[1]:
            share = mask if trainable is None else mask * trainable
            grad_weight = grad * share.view(*share.shape, *([1] * (base.ndim - 2)))
        if ctx.needs_input_grad[2]:
            grad_mask = (grad * base).sum(tuple(range(2, base.ndim)))
        return None, grad_weight, grad_mask, None


def masked_kernels(frozen: Tensor | None, weight: Tensor | None, mask: Tensor, trainable: Tensor | None) -> Tensor:
    """A layer's effective kernels (out, in, *k) from its frozen and trainable ones and a mask (out, in)."""
    kernels: Tensor = _MaskedKernels.apply(frozen, weight, mask, trainable)  # type: ignore[no-untyped-call]
    return kernels
