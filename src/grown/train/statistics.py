"""Norm statistics estimated again after training, as a plain average over batches.

A running average that starts at (0, 1) keeps a part of its start for dozens of batches, which costs points on small
tasks.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def estimate_statistics(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace every batch norm's statistics by their average over these inputs."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    was, momenta = network.training, [norm.momentum for norm in norms]
    network.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # PyTorch's spelling of a cumulative average
        norm.train()
    for x in batches:
        network(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    network.train(was)
