"""The sizes that the paper prints for GROWN after each task, in multiples of its own 1x (kernels alone)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """A row of one of its tables."""

    source: str
    sizes: tuple[float, ...]


CURVES = {
    "cifar100-superclass": Curve(
        "the paper's table “Model size on CIFAR-100 Superclass 20 tasks”, row “Ours”",
        (
            0.3,
            0.4,
            0.48,
            0.56,
            0.65,
            0.75,
            0.75,
            0.83,
            0.94,
            0.94,
            1.12,
            1.18,
            1.24,
            1.24,
            1.3,
            1.3,
            1.38,
            1.44,
            1.44,
            1.5,
        ),
    ),
    "cifar100-split": Curve(
        "the paper's table “Model size on CIFAR-100 Split 10 tasks”, row “Ours”",
        (0.5, 0.64, 0.78, 0.78, 0.84, 0.90, 0.90, 1.10, 1.15, 1.2),
    ),
    "miniimagenet-20": Curve(
        "the paper's table “Model size on miniImageNet split 20 tasks”, row “Ours”",
        (
            0.35,
            0.44,
            0.52,
            0.6,
            0.65,
            0.65,
            0.73,
            0.8,
            0.88,
            0.95,
            1.14,
            1.14,
            1.22,
            1.28,
            1.28,
            1.34,
            1.4,
            1.4,
            1.45,
            1.5,
        ),
    ),
}
