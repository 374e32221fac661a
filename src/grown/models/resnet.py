"""ResNet18 and ResNet50 for images of 32 to 84 pixels (stem: 3x3, stride 1, then 2x2 max pooling), and ResNet9."""

from __future__ import annotations

from torch import Tensor, nn


class _Block(nn.Module):
    """Convolutions with batch norm around a shortcut."""

    def __init__(self, source: int, inner: int, target: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        if bottleneck:
            plan = [(source, inner, 1, 1), (inner, inner, 3, stride), (inner, target, 1, 1)]
        else:
            plan = [(source, inner, 3, stride), (inner, target, 3, 1)]
        body: list[nn.Module] = []
        for a, b, size, step in plan:
            body += [nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*body[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or source != target:
            self.shortcut = nn.Sequential(nn.Conv2d(source, target, 1, stride, bias=False), nn.BatchNorm2d(target))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


def resnet18(channels: int = 3, width: float = 1.0, classes: int = 5) -> nn.Module:
    """Basic blocks 2-2-2-2: 11,159,232 shared weights at 1x."""
    return _resnet((2, 2, 2, 2), 1, channels, width, classes)


def resnet50(channels: int = 3, width: float = 1.0, classes: int = 5) -> nn.Module:
    """Bottleneck blocks 3-4-6-3."""
    return _resnet((3, 4, 6, 3), 4, channels, width, classes)


def resnet9(channels: int = 3, width: float = 1.0, classes: int = 5) -> nn.Module:
    """Eight convolutions, two shortcuts, max pooling (after Page 2018): 6,563,520 shared weights at 1x."""
    a, b, c, d = (max(1, round(planned * width)) for planned in (64, 128, 256, 512))
    layers = [
        *_unit(channels, a),
        *_unit(a, b, pool=True),
        _Shortcut(b),
        *_unit(b, c, pool=True),
        *_unit(c, d, pool=True),
        _Shortcut(d),
    ]
    return _initialised(nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(d, classes)))


class _Shortcut(nn.Module):
    """Two convolutions, added to what went in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_unit(width, width), *_unit(width, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


def _unit(source: int, target: int, pool: bool = False) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(source, target, 3, padding=1, bias=False), nn.BatchNorm2d(target), nn.ReLU()]
    return [*layers, nn.MaxPool2d(2)] if pool else layers


def _resnet(depths: tuple[int, ...], expansion: int, channels: int, width: float, classes: int) -> nn.Module:
    stem = max(1, round(64 * width))
    layers: list[nn.Module] = [
        nn.Conv2d(channels, stem, 3, padding=1, bias=False),
        nn.BatchNorm2d(stem),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    source = stem
    for level, depth in enumerate(depths):
        inner = max(1, round(64 * 2**level * width))
        for number in range(depth):
            stride = 2 if level > 0 and number == 0 else 1
            layers.append(_Block(source, inner, inner * expansion, stride, expansion > 1))
            source = inner * expansion
    return _initialised(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(source, classes)))


def _initialised(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network
