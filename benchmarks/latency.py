"""What an extracted network costs to run: its latency over that of a plain dense network of the same widths, on CPU.

    python benchmarks/latency.py [--out FILE]

The extracted network is a second task's, which picked three quarters of the first one's kernels, at the size of a seed
network. The plain one is an `nn.Sequential` of the same widths without a zero; 1x is the template. Two networks at a
time run in turn on the same batch and one thread, each first as often as the other, with an untimed call before. Times
are the process's own, so that others on the machine count little; figures are medians, the ratio is the median of the
ratios of neighbours.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import grown
from grown.bench import presets
from grown.models import backbone
from masked_step import CLASSES, commit_three_quarters

LIMIT = 1.05
BATCHES = (1, 256)
# backbone -> image, channels, benchmark whose sizes it has, seconds to spend on a row
NETWORKS = {"convnet": (8, 1, "digits", 10.0), "vgg16-bn-pool": (32, 3, "cifar100-superclass", 40.0)}


def make_networks(name: str) -> dict[str, nn.Module]:
    """The template, a task's extracted network, and a plain dense one of the same widths; ready to run."""
    torch.manual_seed(0)
    image, channels, benchmark, _ = NETWORKS[name]
    template = backbone(name, channels, 1.0, image)
    preset = presets.benchmark(benchmark)
    config = preset.config.replace(grow=False, refit=False, decide=1.0, target=0.0, trial=True)
    learner = grown.Learner(template, config, base_parameters=preset.base_parameters)
    draw = np.random.default_rng(0)
    labels = np.arange(4 * CLASSES) % CLASSES
    for task in ("first", "second"):
        part = (draw.integers(0, 256, (len(labels), image, image, channels), dtype=np.uint8), labels)
        commit_three_quarters(learner.open(grown.Task(task, train=part, test=part)))
    extracted = learner.extract("second")
    networks = {"plain": plain_like(template, extracted), "extracted": extracted, "template": template}
    return {kind: network.eval().requires_grad_(False) for kind, network in networks.items()}


def plain_like(template: nn.Module, extracted: nn.Module) -> nn.Sequential:
    """The template's layers anew, as wide as the extracted network's."""
    layers: list[nn.Module] = []
    for name, layer in template.named_children():
        mine: Any = (
            extracted.get_submodule(name) if isinstance(layer, nn.Conv2d | nn.BatchNorm2d | nn.Linear) else layer
        )
        if isinstance(mine, nn.Conv2d):
            layers.append(
                nn.Conv2d(mine.in_channels, mine.out_channels, 3, padding=mine.padding, bias=mine.bias is not None)
            )
        elif isinstance(mine, nn.BatchNorm2d):
            layers.append(nn.BatchNorm2d(mine.num_features))
        elif isinstance(mine, nn.Linear):
            layers.append(nn.Linear(mine.in_features, mine.out_features))
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


@torch.inference_mode()
def seconds(network: nn.Module, x: Tensor, calls: int) -> float:
    """Seconds a call, after one that is not timed."""
    network(x)
    began = time.process_time()
    for _ in range(calls):
        network(x)
    return (time.process_time() - began) / calls


def compare(one: nn.Module, other: nn.Module, x: Tensor, budget: float) -> tuple[float, float, float]:
    """Both latencies in milliseconds, and the first over the second, within about `budget` seconds."""
    once = max(seconds(one, x, 1), seconds(other, x, 1))
    calls = max(1, round(0.02 / once))
    rounds = 2 * max(3, min(200, round(budget / once / (calls + 1) / 4)))
    pairs = []
    for number in range(rounds):
        if number % 2:
            second, first = seconds(other, x, calls), seconds(one, x, calls)
        else:
            first, second = seconds(one, x, calls), seconds(other, x, calls)
        pairs.append((first, second))
    latencies = [1e3 * statistics.median(times) for times in zip(*pairs, strict=True)]
    return latencies[0], latencies[1], statistics.median(first / second for first, second in pairs)


def measure(networks: dict[str, nn.Module], x: Tensor, budget: float) -> dict[str, float]:
    """The extracted network beside the plain one, and how much faster than 1x it is."""
    extracted, plain, ratio = compare(networks["extracted"], networks["plain"], x, budget)
    template, _, speed_up = compare(networks["template"], networks["extracted"], x, budget / 2)
    return {
        "plain_ms": plain,
        "extracted_ms": extracted,
        "ratio": ratio,
        "template_ms": template,
        "speed_up": speed_up,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (image, channels, _, budget) in NETWORKS.items():
        networks = make_networks(name)
        weights = {kind: sum(p.numel() for p in networks[kind].parameters() if p.ndim > 1) for kind in networks}
        for batch in BATCHES:
            figures = measure(networks, torch.randn(batch, channels, image, image), budget)
            share = weights["extracted"] / weights["template"]
            rows.append({"network": name, "weights": share, "batch": batch, **figures})
            print(
                f"{name:14} batch {batch:3}  plain {figures['plain_ms']:9.3f} ms  "
                f"extracted {figures['extracted_ms']:9.3f} ms  ratio {figures['ratio']:.3f}  "
                f"1x {figures['template_ms']:9.3f} ms  {figures['speed_up']:.2f} times faster than 1x"
            )
    print(f"worst ratio {max(row['ratio'] for row in rows):.3f}, at most {LIMIT} is promised")
    if arguments.out is not None:
        about = {"torch": torch.__version__, "threads": 1, "machine": platform.machine()}
        arguments.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
