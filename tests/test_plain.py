"""A task's network in the simplest form that computes the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

import grown
from forging import GOLDEN
from grown.io import container
from grown.models import backbone
from grown.nn.groups import find_channels
from grown.nn.plain import build, simplest, start
from grown.nn.trace import trace
from helpers import assert_same_networks


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), nn.Conv2d(4, 5, 3))
        self.flat = nn.Flatten()
        self.head = nn.Linear(5 * 4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.flat(self.body(x)))
        return out


class Crossed(Nested):
    """Layers of one container run before and after another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.between = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.flat(self.body[2](self.between(self.body[0](x)))))
        return out


class Odd(nn.Module):
    """A layer with the name of something that a container does."""

    def __init__(self) -> None:
        super().__init__()
        self.insert = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.insert(x))
        return out


def plain(template: nn.Module, shape: tuple[int, ...]) -> fx.GraphModule:
    graph = trace(template, shape)
    channels = find_channels(graph)
    network = start(build(graph, channels, channels.template_widths(), 3))
    torch.manual_seed(0)
    for value in network.parameters():
        nn.init.normal_(value, std=0.2)
    return network.eval()


@pytest.mark.parametrize(
    ("template", "shape", "is_chain"),
    [
        (backbone("convnet", channels=1, image=8), (1, 8, 8), True),
        (backbone("lenet", width=0.2), (3, 32, 32), True),
        (backbone("vgg16-bn-pool", width=0.05), (3, 32, 32), True),
        (Nested(), (1, 8, 8), True),
        (Crossed(), (1, 8, 8), False),
        (Odd(), (1, 8, 8), False),
        (backbone("resnet18", width=0.05), (3, 32, 32), False),
    ],
    ids=["convnet", "lenet", "vgg", "nested", "crossed", "odd", "resnet"],
)
def test_a_chain_of_layers_becomes_a_sequence_and_nothing_else_does(
    template: nn.Module, shape: tuple[int, ...], is_chain: bool
) -> None:
    network = plain(template, shape)
    simple = simplest(network)
    assert isinstance(simple, nn.Sequential) == is_chain
    assert (simple is network) != is_chain
    assert simple.state_dict().keys() == network.state_dict().keys()
    assert not simple.training
    x = torch.randn(3, *shape)
    assert torch.equal(simple(x), network(x))


@pytest.mark.parametrize("kind", ["grown", "soft", "bf16", "cpg", "wsn"])
def test_networks_made_on_a_device_are_the_extracted_ones(kind: str) -> None:
    assert_same_networks(grown.load(GOLDEN / f"v{container.VERSION}-{kind}.safetensors"), "cpu")
