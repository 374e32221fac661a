"""The paper's LeNet for CIFAR-100 Split, as in APD's code: 20-50-800-500, no batch norm."""

from __future__ import annotations

from functools import partial

from torch import nn


def lenet(
    channels: int = 3, width: float = 1.0, classes: int = 10, image: int = 32, hidden: float | None = None
) -> nn.Module:
    """Two 5x5 convolutions with ReLU, local response norm and 3/2 max pooling, then two linear layers.

    `hidden` is the width of the linear layers where it is another.
    """
    first, second = (max(1, round(width * w)) for w in (20, 50))
    third, fourth = (max(1, round((width if hidden is None else hidden) * w)) for w in (800, 500))
    # TensorFlow's norm has a radius of 4 and sums alpha = 0.001 / 9 over its window, of which PyTorch takes the mean.
    norm = partial(nn.LocalResponseNorm, size=9, alpha=0.001, beta=0.75, k=1.0)
    side = image
    for _ in range(2):
        side = (side + 1) // 2
    return nn.Sequential(
        nn.Conv2d(channels, first, 5, padding="same"),
        nn.ReLU(),
        norm(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(first, second, 5, padding="same"),
        nn.ReLU(),
        norm(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(second * side * side, third),
        nn.ReLU(),
        nn.Linear(third, fourth),
        nn.ReLU(),
        nn.Linear(fourth, classes),
    )
