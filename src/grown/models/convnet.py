"""A small convnet for the embedded 8x8 images."""

from __future__ import annotations

from torch import nn


def convnet(channels: int = 1, width: float = 1.0, classes: int = 10) -> nn.Module:
    """Three 3x3 convolutions with batch norm, global pooling."""
    widths = [max(1, round(width * w)) for w in (24, 48, 96)]
    layers: list[nn.Module] = []
    source = channels
    for number, target in enumerate(widths):
        layers += [nn.Conv2d(source, target, 3, padding=1, bias=False), nn.BatchNorm2d(target), nn.ReLU()]
        if number == 0:
            layers.append(nn.MaxPool2d(2))
        source = target
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(source, classes)]
    return nn.Sequential(*layers)
