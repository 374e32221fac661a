"""The latency benchmark compares what it says that it compares."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import latency


def test_the_plain_network_has_the_extracted_ones_widths_and_no_zeros() -> None:
    networks = latency.make_networks("convnet")
    shapes = {
        kind: {name: value.shape for name, value in network.state_dict().items()} for kind, network in networks.items()
    }
    assert shapes["plain"] == shapes["extracted"]
    weights = {
        kind: torch.cat(
            [module.weight.flatten() for module in networks[kind].modules() if isinstance(module, nn.Conv2d)]
        )
        for kind in ("plain", "extracted")
    }
    assert bool((weights["plain"] != 0).all())
    assert 0.1 < float((weights["extracted"] == 0).float().mean()) < 0.6
    assert not any(network.training for network in networks.values())


def test_a_ratio_is_of_the_first_over_the_second() -> None:
    narrow, wide = nn.Linear(64, 64), nn.Linear(64, 4096)
    x = torch.randn(256, 64)
    first, second, ratio = latency.compare(wide, narrow, x, 2.0)
    assert first > 5 * second > 0
    assert ratio == pytest.approx(first / second, rel=0.5)
