"""Backbones that are narrow in their linear layers alone, where most weights are, as a seed network may be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from grown.bench.request import Request
from grown.bench.runner import run
from grown.models import BACKBONES, backbone


def widths(network: nn.Module) -> list[int]:
    return [len(layer.weight) for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


def test_where_a_backbone_is_narrow() -> None:
    assert widths(backbone("lenet", width=0.1)) == [2, 5, 80, 50, 10]
    assert widths(backbone("lenet", width=0.1, narrow="hidden")) == [20, 50, 80, 50, 10]
    full = widths(backbone("vgg16-bn", width=0.125))
    assert full[-4:] == [64, 512, 512, 5]
    assert widths(backbone("vgg16-bn", width=0.125, narrow="hidden"))[-4:] == [512, 512, 512, 5]


@pytest.mark.parametrize("name", sorted(set(BACKBONES) - {"lenet", "vgg16-bn"}))
def test_one_without_such_layers_is_narrow_everywhere(name: str) -> None:
    assert widths(backbone(name, width=0.25, narrow="hidden")) == widths(backbone(name, width=0.25))


@pytest.mark.parametrize("width", [1.0, 1.5])
def test_one_that_is_not_narrow_is_as_ever(width: float) -> None:
    assert widths(backbone("lenet", width=width, narrow="hidden")) == widths(backbone("lenet", width=width))


def test_a_run_is_asked_for_it_by_the_shape_of_seed_networks(tmp_path: Path) -> None:
    found = {}
    for shape in ("even", "hidden"):
        request = Request(
            method="scratch", backbone="lenet", width=0.1, tasks=1, epochs=1, settings=(f"shape={shape}",),
            out=tmp_path / shape,
        )  # fmt: skip
        run(request)
        found[shape] = json.loads((tmp_path / shape / "result.json").read_text())
    assert found["even"]["base_parameters"] == found["hidden"]["base_parameters"]  # 1x is the whole backbone
    kernels = 25 * 20 + 25 * 20 * 50 + 2 * 2 * 50 * 80 + 80 * 50
    assert found["hidden"]["size_x"] == pytest.approx(kernels / found["hidden"]["base_parameters"])
