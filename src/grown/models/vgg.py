"""VGG16 with batch norm for 32x32 images, as in CPG's code, and VGG11, half as deep."""

from __future__ import annotations

from torch import nn

from grown.errors import ConfigError

VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)  # 0: max pooling
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def vgg16_bn(
    channels: int = 3, width: float = 1.0, classes: int = 5, image: int = 32, hidden: float | None = None
) -> nn.Module:
    """Thirteen convolutions, then 512-4096-4096 fully connected: 33,584,832 shared weights at 1x.

    `hidden` is the width of the linear layers where it is another.
    """
    units = max(1, round((width if hidden is None else hidden) * 4096))
    layers, source = _features(VGG16, channels, width, image)
    source *= (image // 32) ** 2
    layers += [nn.Flatten(), nn.Linear(source, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU()]
    return _initialised(nn.Sequential(*layers, nn.Linear(units, classes)))


def vgg16_bn_pool(channels: int = 3, width: float = 1.0, classes: int = 5, image: int = 32) -> nn.Module:
    """The thirteen convolutions and global pooling: 14,710,464 shared weights at 1x."""
    return _pooled(VGG16, channels, width, classes, image)


def vgg11_bn_pool(channels: int = 3, width: float = 1.0, classes: int = 5, image: int = 32) -> nn.Module:
    """Eight convolutions and global pooling: 9,217,728 shared weights at 1x, half of VGG16's arithmetic."""
    return _pooled(VGG11, channels, width, classes, image)


def _pooled(plan: tuple[int, ...], channels: int, width: float, classes: int, image: int) -> nn.Module:
    layers, source = _features(plan, channels, width, image)
    return _initialised(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(source, classes)))


def _features(plan: tuple[int, ...], channels: int, width: float, image: int) -> tuple[list[nn.Module], int]:
    if image < 32:
        raise ConfigError(f"VGG halves its images five times and needs at least 32 pixels, but got {image}")
    layers: list[nn.Module] = []
    source = channels
    for planned in plan:
        if planned == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        target = max(1, round(width * planned))
        layers += [nn.Conv2d(source, target, 3, padding=1, bias=False), nn.BatchNorm2d(target), nn.ReLU()]
        source = target
    return layers, source


def _initialised(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
            nn.init.zeros_(module.bias)
    return network
