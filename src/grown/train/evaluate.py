"""Accuracy and loss of a network on a part of a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grown.data.normalisation import Normalisation
from grown.data.part import Part
from grown.train.batches import EVALUATION_BATCH


@dataclass(frozen=True)
class Score:
    """Accuracy in percent, and mean cross-entropy."""

    accuracy: float
    loss: float


def logits_of(network: nn.Module, part: Part, normalise: Normalisation, device: str) -> Tensor:
    """The network's answers, on the CPU."""
    answers, done = torch.empty(0), 0
    with evaluating(network), torch.inference_mode(), _untimed():
        for images in part.chunks(EVALUATION_BATCH):
            found = network(normalise(images.to(device))).float().cpu()
            if done == 0:  # one piece of memory: many small ones would keep the large ones between them from reuse
                answers = torch.empty(len(part), *found.shape[1:])
            answers[done : done + len(found)] = found
            done += len(found)
    return answers.clone()


def evaluate(network: nn.Module, part: Part, normalise: Normalisation, device: str) -> Score:
    """Accuracy and loss of a network that is already on the device."""
    logits, labels = logits_of(network, part, normalise, device), part.labels.cpu()
    right = int((logits.argmax(1) == labels).sum())
    return Score(100.0 * right / len(labels), float(F.cross_entropy(logits, labels)))


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode, and back to what it was."""
    was = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was)


@contextmanager
def _untimed() -> Iterator[None]:
    """No timing of cuDNN's kernels, even amid a training that does it: seconds for a few batches, and other bits."""
    was = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = was
