"""A training step on a GPU against its floor: Scratch and GROWN, VGG16-BN with pooling, at 0.3x, 0.6x and 1x.

GROWN's is timed twice: as a task reuses what there is, and expanded, with gates on the candidates and their penalty.

    python benchmarks/gpu_step.py [--backbone resnet18 --side 84] [--rivals] [--out FILE]

The floor is the larger of two times: operations over the machine's matrix rate, and bytes over its bandwidth, both
measured first. Operations: three passes (forward, input gradient, weight gradient) of two per multiplication. Bytes:
each activation is written and read once forward and once backward in bf16, around its convolution and around its norm;
each weight is read, its gradient written, its momentum updated, in fp32. Sizes are in weights, so widths go with their
root; they are multiples of 8. One epoch is timed after three that capture and warm up.

`--rivals` times Scratch's step as one would write it without this engine too, on images that are augmented beforehand:
PyTorch as it is, and `torch.compile` with CUDA graphs, each with its time until three steps are done at a width.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grown
from grown.bench.presets import RECIPES
from grown.config import Config
from grown.methods.plain import PlainTraining, plain_groups
from grown.models import backbone
from grown.train.batches import Batches
from grown.train.captured import CapturedSteps
from grown.train.steps import Work
from masked_step import commit_three_quarters

BATCH, CLASSES, IMAGES = 64, 5, 2240


def elapsed(work: Any, repeats: int) -> float:
    """Milliseconds a call, on the device's clock."""
    for _ in range(3):
        work()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()  # type: ignore[no-untyped-call]
    for _ in range(repeats):
        work()
    end.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / repeats  # type: ignore[no-untyped-call]


def ceilings() -> tuple[float, float]:
    """Operations and bytes a second: a large bf16 product, a large copy (read and written)."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    rate = 2 * 8192**3 / (elapsed(lambda: a @ a, 20) * 1e-3)
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() * 4 / (elapsed(lambda: target.copy_(source), 20) * 1e-3)
    return rate, bandwidth


def floor(learner: grown.Learner, widths: tuple[int, ...], rate: float, bandwidth: float) -> dict[str, float]:
    """The least time that a step can take, in milliseconds, and what it is made of."""
    operations = weights = activations = 0
    for node in learner.graph.banked():
        bank = learner.banks[node.name]
        rows, columns = bank.extent(widths)
        pixels = math.prod(node.shape[1:])
        count = rows * columns * bank.kernel_size
        weights += count
        operations += 3 * 2 * count * pixels * BATCH
        activations += 2 * BATCH * rows * pixels  # the convolution's and the norm's output
    moved = activations * 2 * 4 + weights * 4 * 5
    times = {"arithmetic_ms": 1e3 * operations / rate, "memory_ms": 1e3 * moved / bandwidth}
    return {**times, "floor_ms": max(times.values())}


def task(name: str, side: int) -> grown.Task:
    """Noise of the right shape."""
    draw = np.random.default_rng(0)
    labels = np.arange(IMAGES) % CLASSES
    part = (draw.integers(0, 256, (IMAGES, side, side, 3), dtype=np.uint8), labels)
    return grown.Task(name, train=part, test=part)


def timed(work: Work) -> tuple[float, float]:
    """Milliseconds a step of a warm epoch, and the seconds of the first one, which captures."""
    clock = [time.perf_counter()]
    steps = CapturedSteps(work)
    work.network.train()
    for number in (1, 2, 3, 4):
        steps.epoch(number)
        torch.cuda.synchronize()
        clock.append(time.perf_counter())
    steps.finish()
    return 1e3 * (clock[-1] - clock[-2]) / work.batches.steps, clock[1] - clock[0]


def rival(network: nn.Module, batches: Batches, compiled: bool) -> dict[str, float]:
    """A plain step without the engine, and the seconds until three of them are done."""
    device = batches.device.type
    network = network.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    recipe = batches.recipe
    optimizer = torch.optim.SGD(
        network.parameters(),
        recipe.rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=True,
        fused=True,
    )

    def loss_of(x: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            logits = network(x)
        return F.cross_entropy(logits.float(), labels, label_smoothing=recipe.smoothing)

    run = torch.compile(loss_of, mode="reduce-overhead", dynamic=False) if compiled else loss_of
    batches.begin(1)
    ready = [batches.at(step) for step in range(batches.steps)]

    def steps(count: int) -> float:
        began = time.perf_counter()
        for batch in ready[:count]:
            run(batch.x, batch.labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    name, first = "compiled" if compiled else "eager", steps(3)
    steps(len(ready))
    return {f"{name}_ms": 1e3 * steps(len(ready)) / len(ready), f"{name}_first_s": first}


def measure(
    name: str, side: int, size: float, rate: float, bandwidth: float, *, rivals: bool = False
) -> dict[str, Any]:
    """Scratch and GROWN at one size."""
    recipe = RECIPES["fast"]
    config = Config(
        grow=False,
        growth="open",
        seed_size=size,
        max_size=2.0,
        width_multiple=8,
        target=0.0,
        device="cuda",
        recipe=recipe,
    )
    learner = grown.Learner(backbone(name, image=side), config)
    commit_three_quarters(learner.open(task("first", side)))
    stage = learner.open(task("second", side))
    batches = Batches(stage.fit, stage.normalise, recipe, "cuda", 0)
    masked, first_epoch = timed(Work(stage.network, stage.parameter_groups(), batches, recipe))
    if not stage.expand():
        raise SystemExit(f"there is no room to expand at {size}x")
    growing, _ = timed(Work(stage.network, stage.parameter_groups(), batches, recipe, penalty=stage.penalty))
    training = PlainTraining(learner.graph, learner.gains, config)
    training.widths = learner.widths
    network = training.fresh(stage.task, 0).cuda().train().requires_grad_(True)
    plain, scratch_first = timed(Work(network, plain_groups(network), batches, recipe))
    others: dict[str, float] = {}
    for compiled in (False, True) if rivals else ():
        others |= rival(training.fresh(stage.task, 0).requires_grad_(True), batches, compiled)
    least = floor(learner, learner.widths, rate, bandwidth)
    return {
        "size": size,
        "widths": list(learner.widths),
        "scratch_ms": plain,
        "grown_ms": masked,
        "growing_ms": growing,
        "ratio": masked / plain,
        "first_epoch_s": first_epoch,
        "scratch_first_epoch_s": scratch_first,
        **others,
        **least,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="vgg16-bn-pool")
    parser.add_argument("--side", type=int, default=32, help="of the images, in pixels")
    parser.add_argument("--rivals", action="store_true", help="time PyTorch as it is and torch.compile too")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    arguments = parser.parse_args()
    rate, bandwidth = ceilings()
    torch.backends.cudnn.benchmark = True
    rows = [
        measure(arguments.backbone, arguments.side, size, rate, bandwidth, rivals=arguments.rivals)
        for size in (0.3, 0.6, 1.0)
    ]
    print(f"measured ceilings: {rate / 1e12:.0f} TFLOP/s in bf16, {bandwidth / 1e12:.2f} TB/s")
    for row in rows:
        print(
            f"{row['size']}x  Scratch {row['scratch_ms']:.3f} ms  GROWN {row['grown_ms']:.3f} ms  "
            f"expanding {row['growing_ms']:.3f} ms  ratio {row['ratio']:.3f}  floor {row['floor_ms']:.3f} ms "
            f"(arithmetic {row['arithmetic_ms']:.3f}, memory {row['memory_ms']:.3f})"
        )
        if arguments.rivals:
            print(
                f"      without the engine {row['eager_ms']:.3f} ms, torch.compile {row['compiled_ms']:.3f} ms; "
                f"before that {row['scratch_first_epoch_s']:.1f} s of ours, {row['compiled_first_s']:.1f} s of it"
            )
    if arguments.out is not None:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "batch": BATCH}
        about |= {"backbone": arguments.backbone, "side": arguments.side}
        ceilings_found = {"tflops": rate / 1e12, "terabytes": bandwidth / 1e12}
        arguments.out.write_text(
            json.dumps({"about": about, "ceilings": ceilings_found, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
