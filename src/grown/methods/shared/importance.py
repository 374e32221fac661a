"""How much each kernel matters to a task: a mean over its images of something of each image's own gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grown import seeds
from grown.methods.shared.training import Training, Weights
from grown.nn.accelerate import channels_first


def mean_of_gradients(
    training: Training,
    images: int,
    seed: int,
    value: Callable[[Tensor, Tensor], Tensor],
    weigh: Callable[[Tensor], Tensor],
) -> Weights:
    """The mean of weigh(gradient of value(logits, label)) over at most so many images, one by one.

    Images are as evaluation sees them, and norms use their statistics: an image's gradient is its own alone.
    """
    network, kernels, part = training.network, training.kernels, training.part
    draw = seeds.generator(seed, "importance", training.task.name)
    which = torch.randperm(len(part), generator=draw)[:images]
    device = next(iter(kernels.values())).device
    x, labels = channels_first(training.normalise(part.images[which].to(device))), part.labels[which].to(device)
    total = {key: torch.zeros_like(kernel) for key, kernel in kernels.items()}
    for kernel in kernels.values():
        kernel.requires_grad_(True)
    for one in range(len(which)):
        outcome = value(network(x[one : one + 1]), labels[one : one + 1])
        for key, slope in zip(total, torch.autograd.grad(outcome, list(kernels.values())), strict=True):
            total[key] += weigh(slope)
    for kernel in kernels.values():
        kernel.requires_grad_(False)
    return {key: (sums / len(which)).detach().cpu().contiguous() for key, sums in total.items()}
