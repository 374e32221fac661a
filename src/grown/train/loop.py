"""The one training loop: every method, every stage, every device.

On a GPU the step is captured once and replayed (captured.py); on the CPU the same step runs as it is (steps.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grown import seeds
from grown.errors import FileError
from grown.io import journal
from grown.train import snapshots
from grown.train.captured import CapturedSteps
from grown.train.memory import explained
from grown.train.steps import Epoch, PlainSteps, Work


def fit(work: Work, capture: bool = True) -> None:
    """Train the parameter groups for the recipe's epochs."""
    on_gpu = work.batches.device.type == "cuda"
    # A captured step reads from a whole epoch on the device, which is not for images that stay on disk.
    captured = on_gpu and capture and work.anneal is None and work.batches.resident
    recipe, device = work.recipe, work.batches.device
    entry = journal.claim()
    with explained(recipe, device), random_numbers(device, work.seed), autotuned(on_gpu):
        steps = CapturedSteps(work) if captured else PlainSteps(work)
        done = go_on(steps, entry)
        for number in range(done + 1, recipe.epochs + 1):
            work.network.train()
            if work.anneal is not None:
                work.anneal((number - 1) / recipe.epochs)
            loss = steps.epoch(number)
            if work.after_epoch is not None:
                work.after_epoch(Epoch(number, recipe.epochs, loss))
            last = is_last(work, number)
            if entry is not None:
                entry.keep(recipe.epochs if last else number, recipe.epochs, partial(kept, steps, final=last))
            if last:
                break
        steps.finish()


def is_last(work: Work, number: int) -> bool:
    """Whether a training ends with this epoch: its recipe does, or it is over before."""
    return number == work.recipe.epochs or (work.is_over is not None and work.is_over())


def go_on(steps: PlainSteps | CapturedSteps, entry: journal.Entry | None) -> int:
    """Take up what was kept of a training; returns the epochs that it has behind it."""
    snapshot = entry.read() if entry is not None else None
    if entry is None or snapshot is None:
        return 0
    if snapshot.epochs != steps.recipe.epochs:
        raise FileError(f"a training of {snapshot.epochs} epochs was kept, but this one has {steps.recipe.epochs}")
    snapshots.restore(snapshot.tensors, steps.work.network, steps.optimizers, steps.batches.device)
    steps.skip(snapshot.epoch)
    entry.taken()
    return snapshot.epoch


def kept(steps: PlainSteps | CapturedSteps, final: bool) -> dict[str, Tensor]:
    """What a training goes on from; once it ended, only the network."""
    return snapshots.take(steps.work.network, [] if final else steps.optimizers, steps.batches.device)


@contextmanager
def random_numbers(device: torch.device, seed: int) -> Iterator[None]:
    """Dropout and mask noise draw from the seed; the process's own random state is left as it was."""
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(seeds.derive(seed, "dropout"))
        yield


def autotuned(on_gpu: bool) -> Any:
    """Let cuDNN time its kernels for these shapes, unless the process asked for deterministic ones."""
    if not on_gpu:
        return nullcontext()
    asked = torch.backends.cudnn
    return asked.flags(
        enabled=True, benchmark=not asked.deterministic, deterministic=asked.deterministic, allow_tf32=asked.allow_tf32
    )
