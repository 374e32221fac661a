"""What a task's images look like to its own network, in a few hundred bytes: which task is it, and is it any?

What enters the head is projected to a few numbers by a fixed drawing. Of the task's training images are kept: the mean
of each class and one whitening for all, and how far held-out images lie from the nearest class (squared, whitened).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grown.errors import FileError
from grown.io.fields import Fields

SIZE = 16  # numbers that an image is projected to
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)  # shares of held-out images whose distance is kept
MOST = 1000  # images that are looked at


@dataclass(frozen=True, eq=False)
class Features:
    """One task's statistic; numbers are as a file holds them, of 16 bits."""

    scale: float  # of the projected features
    whitening: Tensor  # (SIZE, SIZE), lower triangular
    classes: Tensor  # (classes, SIZE), whitened means
    far: tuple[float, ...]  # distances of held-out images, at LEVELS

    def distance(self, seen: Tensor) -> Tensor:
        """How far images lie from the nearest class, of what entered the head (n, f); 1 is usual for this task."""
        places = project(seen) / self.scale @ self.whitening.T
        return torch.cdist(places, self.classes).square().min(1).values / self.far[0]

    def nearer(self, distance: Tensor) -> Tensor:
        """The share of the task's own images that lie nearer; 1 beyond the last level."""
        known = np.array([0.0, *self.far]) / self.far[0]
        shares = np.interp(distance.cpu().numpy(), known, [0.0, *LEVELS], right=1.0)
        return torch.from_numpy(shares)

    def to_json(self) -> dict[str, Any]:
        """For a task's object in a file."""
        rows, columns = torch.tril_indices(SIZE, SIZE)
        return {
            "scale": self.scale,
            "whitening": _text(self.whitening[rows, columns]),
            "classes": [_text(row) for row in self.classes],
            "far": list(self.far),
        }

    @staticmethod
    def from_json(found: Any, classes: int) -> Features:
        """What `to_json` wrote."""
        fields = Fields(found, "a task's features")
        rows, columns = torch.tril_indices(SIZE, SIZE)
        whitening = torch.zeros(SIZE, SIZE, dtype=torch.float64)
        whitening[rows, columns] = _numbers(fields.text("whitening", 1000), len(rows))
        texts, far = fields.items("classes"), fields.numbers("far", len(LEVELS), above=0.0)
        if len(texts) != classes or list(far) != sorted(far):
            raise FileError("a task's features do not go with its classes, or its distances do not rise")
        means = torch.stack([_numbers(text, SIZE) for text in texts])
        return Features(fields.number("scale", above=0.0), whitening, means, far)


def project(seen: Tensor) -> Tensor:
    """Features (n, f) as SIZE numbers each, by a drawing that depends on f alone."""
    width = seen.shape[1]
    draw = torch.randn((width, SIZE), generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    places: Tensor = seen.cpu().double() @ (draw / width**0.5)
    return places


def measure(fit: Tensor, labels: Tensor, held_out: Tensor, classes: int) -> Features:
    """The statistic of what entered the head for training images (n, f), scaled by held-out ones."""
    places = project(fit)
    means = torch.stack([places[labels == number].mean(0) for number in range(classes)])
    inside = places - means[labels]
    scale = _rounded(float(inside.square().mean().sqrt().clamp_min(1e-12)))
    covariance = inside.T @ inside / len(inside) / scale**2
    share = max(1e-3, SIZE / (SIZE + len(inside)))  # few images say little of directions
    covariance = (1 - share) * covariance + share * torch.eye(SIZE, dtype=torch.float64)
    whitening = torch.linalg.inv(torch.linalg.cholesky(covariance)).half().double()
    middle = (means / scale @ whitening.T).clamp(-60000, 60000).half().double()
    plain = Features(scale, whitening, middle, (1.0,) * len(LEVELS))
    levels = plain.distance(held_out).quantile(torch.tensor(LEVELS, dtype=torch.float64))
    return Features(scale, whitening, middle, tuple(_rounded(max(float(level), 1e-6)) for level in levels))


@torch.inference_mode()
def seen_by_head(network: nn.Module, head: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """What enters a network's head (n, f), and its logits."""
    entered: list[Tensor] = []
    hook = network.get_submodule(head).register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    try:
        logits: Tensor = network(x)
    finally:
        hook.remove()
    return entered[0], logits


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _text(values: Tensor) -> str:
    return base64.b64encode(values.numpy().astype("<f2").tobytes()).decode()


def _numbers(text: Any, count: int) -> Tensor:
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), "<f2")
    except (binascii.Error, TypeError, ValueError) as error:
        raise FileError("a task's features are not numbers of 16 bits in base64") from error
    if len(values) != count or not np.isfinite(values).all():
        raise FileError(f"a task's features must be {count} finite numbers")
    return torch.from_numpy(values.astype(np.float64))
