"""The templates that ship: plain modules, known to nothing else in the library by more than their name."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from grown.errors import unknown
from grown.models.convnet import convnet
from grown.models.lenet import lenet
from grown.models.resnet import resnet9, resnet18, resnet50
from grown.models.vgg import vgg11_bn_pool, vgg16_bn, vgg16_bn_pool

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "convnet": convnet,
    "lenet": lenet,
    "vgg11-bn-pool": vgg11_bn_pool,
    "vgg16-bn": vgg16_bn,
    "vgg16-bn-pool": vgg16_bn_pool,
    "resnet9": resnet9,
    "resnet18": resnet18,
    "resnet50": resnet50,
}


def backbone(name: str, channels: int = 3, width: float = 1.0, image: int = 32, narrow: str = "even") -> nn.Module:
    """A template by its name, for square images of this size and depth, its layers `width` times as wide.

    If it is `narrow` in its "hidden" linear layers first, the others keep their width, in a template that has such.
    """
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    make = BACKBONES[name]
    known = inspect.signature(make).parameters
    sizes = (
        {"width": 1.0, "hidden": width} if narrow == "hidden" and "hidden" in known and width < 1 else {"width": width}
    )
    if "image" in known:
        return make(channels=channels, image=image, **sizes)
    return make(channels=channels, **sizes)


__all__ = [
    "BACKBONES",
    "backbone",
    "convnet",
    "lenet",
    "resnet9",
    "resnet18",
    "resnet50",
    "vgg11_bn_pool",
    "vgg16_bn",
    "vgg16_bn_pool",
]
