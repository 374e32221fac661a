"""What masks cost: a training step of a masked network over a plain one of the same dense shape, on CPU.

    python benchmarks/masked_step.py [--out FILE]

Both train on the same batch of 64 with the same loss and recipe (SGD for weights; Adam for scores, where there are
any). "reuse": three quarters of the kernels frozen, the rest released and trained again, a score on each. "expand":
the same with open candidate channels behind gates and the growth penalty; the plain network has their width too.
Steps are timed in turn, a masked one after a plain one; the figure is the median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.config import Config, Recipe
from grown.methods.plain import plain_groups
from grown.models import backbone
from grown.nn.plain import build, start
from grown.train.steps import make_optimizers

BATCH, CLASSES = 64, 5
LIMIT = 1.3


def commit_three_quarters(stage: grown.Stage) -> None:
    """Commit a task that uses three quarters of its kernels, drawn; the rest is released."""
    with torch.no_grad():
        for layer in stage.network.masked().values():
            if layer.scores is not None:
                layer.scores.copy_(torch.rand(layer.scores.shape) - 0.25)
    stage.commit()


def make_stage(name: str, width: float, image: int, channels: int, expand: bool) -> grown.Stage:
    """A second task's stage, after a first one left a quarter of the kernels free."""
    torch.manual_seed(0)
    config = Config(grow=False, seed_size=1.0, max_size=2.0, step_size=0.2, task_size=0.5, growth="open", target=0.0)
    learner = grown.Learner(backbone(name, channels, width, image), config)
    draw = np.random.default_rng(0)
    labels = np.arange(4 * CLASSES) % CLASSES

    def task(label: str) -> grown.Task:
        part = (draw.integers(0, 256, (len(labels), image, image, channels), dtype=np.uint8), labels)
        return grown.Task(label, train=part, test=part)

    commit_three_quarters(learner.open(task("first")))
    stage = learner.open(task("second"))
    if expand and not stage.expand():
        raise RuntimeError("there was no room to expand")
    return stage


def stepper(network: nn.Module, groups: list[dict[str, Any]], penalty: Callable[[], Tensor] | None) -> Any:
    """A function that does one step on a batch."""
    network.train()
    optimizers = make_optimizers(groups, Recipe(batch=BATCH))

    def step(x: Tensor, y: Tensor) -> None:
        loss = F.cross_entropy(network(x), y)
        if penalty is not None:
            loss = loss + penalty()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def measure(name: str, width: float, image: int, channels: int, expand: bool, steps: int) -> dict[str, Any]:
    """The two times and their ratio."""
    stage = make_stage(name, width, image, channels, expand)
    learner, widths = stage.learner, stage.network.widths
    plain = start(build(learner.graph, learner.channels, widths, CLASSES))
    with torch.no_grad():
        for parameter in plain.parameters():
            if parameter.ndim > 1:
                nn.init.kaiming_normal_(parameter)
    masked_step = stepper(stage.network, stage.parameter_groups(), stage.penalty if stage.has_penalty else None)
    plain_step = stepper(plain.requires_grad_(True), plain_groups(plain), None)
    x, y = torch.randn(BATCH, channels, image, image), torch.arange(BATCH) % CLASSES
    times: dict[str, list[float]] = {"plain": [], "masked": []}
    for number in range(steps + 3):
        for kind, step in (("plain", plain_step), ("masked", masked_step)):
            began = time.perf_counter()
            step(x, y)
            if number >= 3:
                times[kind].append(time.perf_counter() - began)
    ratios = [m / p for m, p in zip(times["masked"], times["plain"], strict=True)]
    return {
        "network": name,
        "width": width,
        "stage": "expand" if expand else "reuse",
        "steps": steps,
        "plain_ms": 1e3 * statistics.median(times["plain"]),
        "masked_ms": 1e3 * statistics.median(times["masked"]),
        "ratio": statistics.median(ratios),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for name, width, image, channels, steps in (("convnet", 1.0, 8, 1, 300), ("vgg16-bn-pool", 0.5, 32, 3, 12)):
        for expand in (False, True):
            rows.append(measure(name, width, image, channels, expand, steps))
            row = rows[-1]
            print(
                f"{name:14} width {width} {row['stage']:7} plain {row['plain_ms']:8.2f} ms  "
                f"masked {row['masked_ms']:8.2f} ms  ratio {row['ratio']:.3f}"
            )
    worst = max(row["ratio"] for row in rows)
    print(f"worst ratio {worst:.3f}, at most {LIMIT} is promised")
    if arguments.out is not None:
        about = {"torch": torch.__version__, "threads": arguments.threads, "machine": platform.machine()}
        arguments.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
