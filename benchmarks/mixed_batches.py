"""Throughput of batches in which every image has its own task, over batches of one task.

    python benchmarks/mixed_batches.py [--device cuda] [--out FILE]

VGG16-BN with pooling at half width, 20 tasks that each use three quarters of the kernels, batches of 256 images of
32 x 32 pixels. A mixed batch holds all tasks, drawn; it is timed against a batch of one task, in turn, and the figure
is the median of the ratios. Both go through `Learner.predict_mixed`, images in, probabilities out.
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

import grown
from grown.config import Config
from grown.models import backbone
from masked_step import commit_three_quarters

BATCH, TASKS, CLASSES, LIMIT = 256, 20, 5, 0.7


def make_learner(name: str, width: float, image: int, channels: int, tasks: int) -> grown.Learner:
    """Tasks that were opened and committed with drawn masks: what is timed does not depend on what was learned."""
    torch.manual_seed(0)
    config = Config(grow=False, seed_size=1.0, max_size=2.0, target=0.0)
    learner = grown.Learner(backbone(name, channels, width, image), config)
    draw = np.random.default_rng(0)
    labels = np.arange(4 * CLASSES) % CLASSES
    part = (draw.integers(0, 256, (len(labels), image, image, channels), dtype=np.uint8), labels)
    for number in range(tasks):
        commit_three_quarters(learner.open(grown.Task(f"t{number}", train=part, test=part)))
    return learner


def measure(learner: grown.Learner, image: int, channels: int, rounds: int, device: str) -> dict[str, Any]:
    """Images a second of both kinds of batch, and their ratio."""
    draw = np.random.default_rng(1)
    images = draw.integers(0, 256, (BATCH, image, image, channels), dtype=np.uint8)
    names = learner.tasks
    mixed = [names[number % len(names)] for number in draw.permutation(BATCH)]
    times: dict[str, list[float]] = {"single": [], "mixed": []}
    for number in range(-len(names), rounds):  # once for each task without being timed
        single = [names[number % len(names)]] * BATCH
        for kind, tasks in (("single", single), ("mixed", mixed)):
            learner.predict_mixed(images[:2], tasks[:2], device)  # its network is there
            began = time.perf_counter()
            learner.predict_mixed(images, tasks, device)
            if number >= 0:
                times[kind].append(time.perf_counter() - began)
    ratios = [one / many for one, many in zip(times["single"], times["mixed"], strict=True)]
    return {
        "batch": BATCH,
        "tasks": len(names),
        "rounds": rounds,
        "single_images_a_second": BATCH / statistics.median(times["single"]),
        "mixed_images_a_second": BATCH / statistics.median(times["mixed"]),
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON; rows of other devices stay")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", default="vgg16-bn-pool")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    image, channels = (8, 1) if arguments.network == "convnet" else (32, 3)
    learner = make_learner(arguments.network, 0.5, image, channels, TASKS)
    device = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.machine()
    about = {"network": arguments.network, "width": 0.5, "device": device, "torch": torch.__version__}
    row = {
        **about,
        "threads": arguments.threads,
        **measure(learner, image, channels, arguments.rounds, arguments.device),
    }
    print(
        f"{row['network']} on {device}: single {row['single_images_a_second']:.0f}, mixed "
        f"{row['mixed_images_a_second']:.0f} images a second, ratio {row['ratio']:.3f} (at least {LIMIT} is promised)"
    )
    if arguments.out is not None:
        rows = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
        rows = [old for old in rows if (old["network"], old["device"]) != (row["network"], row["device"])]
        arguments.out.write_text(json.dumps({"rows": [*rows, row]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
