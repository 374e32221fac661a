"""Templates are read as they are written; what cannot grow is refused by name, with the reason."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.errors import TemplateError
from grown.models import BACKBONES, backbone
from grown.nn.graph import Graph
from grown.nn.groups import find_channels
from grown.nn.trace import check, trace
from helpers import Branchy

SIZES = {
    "vgg16-bn": 33_584_832,
    "vgg16-bn-pool": 14_710_464,
    "resnet18": 11_159_232,
    "lenet": 2_986_500,
    "vgg11-bn-pool": 9_217_728,
    "resnet9": 6_563_520,
}


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_backbones_are_traced_and_counted(name: str) -> None:
    learner = grown.Learner(backbone(name), input_shape=(3, 32, 32))
    assert learner.base_parameters == SIZES.get(name, learner.base_parameters)


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_a_graph_survives_json(name: str) -> None:
    graph = trace(backbone(name), (3, 32, 32))
    assert Graph.from_json(graph.to_json()) == graph


def test_an_addition_ties_its_branches() -> None:
    graph = trace(Branchy(), (1, 8, 8))
    channels = find_channels(graph)
    assert channels.output["stem"] == channels.output["left"]
    assert channels.output["down"].groups != channels.output["stem"].groups
    assert len(channels.output["cat"].groups) == 2


def test_a_concatenation_may_be_added_to_one_layer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(1, 4, 1), nn.Conv2d(1, 6, 1), nn.Conv2d(1, 10, 1)
            self.head = nn.Linear(10, 2)

        def forward(self, x: Tensor) -> Tensor:
            both = torch.cat((self.a(x), self.b(x)), 1) + self.c(x)
            return self.head(both.mean((2, 3)))

    channels = find_channels(trace(Net(), (1, 8, 8)))
    assert [channels.groups[g].width for g in channels.output["c"].groups] == [4, 6]
    assert channels.output["c"].groups == (*channels.output["a"].groups, *channels.output["b"].groups)


def test_an_addition_with_the_input_fixes_its_group() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x + self.conv(x)).mean([2, 3]))

    channels = find_channels(trace(Net(), (3, 8, 8)))
    assert channels.groups[channels.output["conv"].groups[0]].fixed


def test_group_norm_sets_the_quantum() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.GroupNorm(3, 12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 2)
    )
    assert find_channels(trace(net, (1, 8, 8))).groups[1].quantum == 4


@pytest.mark.parametrize(
    ("activation", "silent"),
    [
        (nn.ReLU(), True),
        (nn.Hardtanh(), True),
        (nn.Hardtanh(0.1, 1.0), False),
        (nn.Sigmoid(), False),
        (nn.Softplus(), False),
        (nn.GELU(), True),
    ],
)
def test_a_group_is_silent_only_if_its_activations_keep_zero(activation: nn.Module, silent: bool) -> None:
    with torch.no_grad():
        assert bool(activation(torch.zeros(3)).abs().sum() == 0) == silent
    net = nn.Sequential(nn.Conv2d(1, 4, 1), activation, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    assert find_channels(trace(net, (1, 4, 4))).groups[1].silent == silent


def test_an_in_place_operation_overwrites_its_input() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 1), nn.Linear(4, 2)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            y = self.relu(x)
            return self.head((x + y).mean((2, 3)))

    graph = trace(Net(), (1, 4, 4))
    assert graph["add"].inputs == ("relu", "relu")


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(1),
        lambda x: x.view(-1, 64),
    ],
)
def test_flattening_may_be_spelled_in_many_ways(spelling: object) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 1), nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(spelling(F.avg_pool2d(F.leaky_relu(self.conv(x), 0.2), 2)))  # type: ignore[operator]

    graph = trace(Net(), (1, 8, 8))
    assert graph.nodes[-2].op == "flatten"
    assert find_channels(graph).output[graph.nodes[-2].name].repeat == 16


def _net(body: object, **layers: nn.Module) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(4, 4, 1), nn.Linear(4, 2)
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, x: Tensor) -> Tensor:
            return body(self, x)  # type: ignore[operator, no-any-return]

    return Net()


POOL = (2, 3)
REFUSED = {
    "grouped": (lambda n, x: n.head(n.odd(x).mean(POOL)), {"odd": nn.Conv2d(4, 4, 1, groups=2)}, "odd.*groups=2"),
    "multiplier": (
        lambda n, x: n.head(n.odd(n.conv(x))[:, :4].mean(POOL)),
        {"odd": nn.Conv2d(4, 8, 1, groups=4)},
        "odd.*grouped",
    ),
    "twice": (lambda n, x: n.head(n.conv(n.conv(x)).mean(POOL)), {}, "conv.*2 times"),
    "product": (lambda n, x: n.head((n.conv(x) * n.odd(x)).mean(POOL)), {"odd": nn.Conv2d(4, 4, 1)}, "mul.*two"),
    "matmul": (lambda n, x: n.head((n.conv(x) @ x).mean(POOL)), {}, "matmul.*multiplication"),
    "constant": (lambda n, x: n.head((n.conv(x) + 1.0).mean(POOL)), {}, "add.*two branches"),
    "layer norm": (lambda n, x: n.head(n.odd(n.conv(x).mean(POOL))), {"odd": nn.LayerNorm(4)}, "odd.*LayerNorm"),
    "statistics": (
        lambda n, x: n.head(n.odd(n.conv(x)).mean(POOL)),
        {"odd": nn.BatchNorm2d(4, track_running_stats=False)},
        "odd.*running statistics",
    ),
    "softmax": (lambda n, x: torch.softmax(n.head(n.conv(x).mean(POOL)), 1), {}, "must end with a linear layer"),
    "control flow": (lambda n, x: n.head(n.conv(x).mean(POOL)) if x.sum() > 0 else x, {}, "cannot be traced"),
    "axis": (lambda n, x: n.head(torch.cat([n.conv(x), n.odd(x)], 2).mean(POOL)), {"odd": nn.Conv2d(4, 4, 1)}, "dim=2"),
    "buffer": (lambda n, x: n.head((n.conv(x) + n.conv.bias.view(1, 4, 1, 1)).mean(POOL)), {}, "conv.bias.*directly"),
    "two heads": (lambda n, x: (n.head(n.conv(x).mean(POOL)), x), {}, "one output"),
    "one-dimensional mean": (lambda n, x: n.head(n.conv(x).mean(2).mean(2)), {}, "both image axes"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_refusals_name_the_module_and_the_reason(case: str) -> None:
    body, layers, words = REFUSED[case]
    with pytest.raises(TemplateError, match=words) as caught:
        grown.Learner(_net(body, **layers))
    assert "\n" not in str(caught.value)


def test_shared_weights_are_refused() -> None:
    first, second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
    second.weight = first.weight
    net = _net(lambda n, x: n.head(n.b(n.a(x)).mean(POOL)), a=first, b=second)
    with pytest.raises(TemplateError, match=r"b: its weight is shared with a"):
        check(net)


def test_an_image_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"\[1, 12, 12\]"):
        grown.Learner(Branchy(), input_shape=(1, 12, 12))


def test_a_group_norm_across_a_concatenation_is_refused_where_its_groups_straddle() -> None:
    net = _net(lambda n, x: n.head(n.norm(torch.cat([n.conv(x), n.b(x)], 1)).mean(POOL)),
               b=nn.Conv2d(4, 2, 1), norm=nn.GroupNorm(2, 6))  # fmt: skip
    net.head = nn.Linear(6, 2)
    with pytest.raises(TemplateError, match=r"norm.*straddle"):
        grown.Learner(net, input_shape=(4, 4, 4))


def test_flattened_branches_of_different_sizes_are_refused() -> None:
    net = _net(lambda n, x: n.head(torch.cat([n.conv(x).flatten(1), n.b(x).flatten(1)], 1)), b=nn.Conv2d(4, 4, 1, 2))
    net.head = nn.Linear(4 * 16 + 4 * 4, 2)
    with pytest.raises(TemplateError, match="different image sizes"):
        grown.Learner(net, input_shape=(4, 4, 4))


def test_a_graph_from_a_stranger_is_checked() -> None:
    good = trace(Branchy(), (1, 8, 8)).to_json()
    for change in (
        {"op": "exec"},
        {"inputs": ["nowhere"]},
        {"attrs": {}},
        {"shape": [-1]},
        {"name": "input"},
    ):
        bad = [dict(node) for node in good]
        bad[1].update(change)
        with pytest.raises(TemplateError):
            Graph.from_json(bad)
    for bad in (None, [], [{}], good[1:], good[:-1]):
        with pytest.raises(TemplateError):
            Graph.from_json(bad)
