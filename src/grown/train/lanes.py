"""Independent trainings side by side on one GPU: one small training leaves most of it idle."""

from __future__ import annotations

from functools import partial

import torch

from grown.io import journal
from grown.train.captured import CapturedSteps
from grown.train.loop import autotuned, fit, go_on, is_last, kept, random_numbers
from grown.train.memory import explained
from grown.train.steps import Epoch, Work


def fit_together(works: list[Work], lanes: int) -> None:
    """Independent trainings; on a GPU so many of them at once, each on a stream of its own.

    One small training leaves most of a GPU idle. A training that draws random numbers on the device (dropout) comes out
    as deterministic as alone, but not the same as alone.
    """
    if not all(work.batches.device.type == "cuda" and work.batches.resident for work in works):
        for work in works:
            fit(work)
        return
    if not works:
        return
    device = works[0].batches.device
    with explained(works[0].recipe, device, lanes), random_numbers(device, works[0].seed), autotuned(True):
        _side_by_side(works, lanes)


def _side_by_side(works: list[Work], lanes: int) -> None:
    """So many trainings at a time, a step of each in turn."""
    waiting = list(works)
    running: list[_Lane] = []
    while waiting or running:
        while waiting and len(running) < lanes:
            lane = _Lane(waiting.pop(0))
            running += [] if lane.is_done else [lane]
        for lane in running:
            lane.begin()
        for _ in range(max((lane.left for lane in running), default=0)):
            for lane in running:
                lane.advance()
        for lane in running:
            lane.steps.look_ahead()
        for lane in running:
            lane.end()
        running = [lane for lane in running if not lane.is_done]


class _Lane:
    """A training that shares the GPU with others: its epochs are driven from outside, step by step."""

    def __init__(self, work: Work) -> None:
        self.work = work
        work.network.train()
        if work.batches.device.type == "cuda":
            torch.cuda.synchronize()  # kernels are timed and steps captured while nothing else runs
        self.steps = CapturedSteps(work, shared=True)
        self.entry = journal.claim()
        self.number = 1 + go_on(self.steps, self.entry)
        self.left = 0
        self._began = False  # the epoch of this number
        if self.is_done:
            self.steps.finish()
            return
        self.begin()
        while self.left and not self.steps.is_captured:
            self.advance()

    @property
    def is_done(self) -> bool:
        return self.number > self.work.recipe.epochs

    def begin(self) -> None:
        """Begin an epoch, unless it has begun."""
        if not self._began:
            self._began = True
            self.work.network.train()
            self.steps.begin(self.number)
            self.left = self.work.batches.steps

    def advance(self) -> None:
        """One step of the epoch, if one is left."""
        if self.left:
            self.steps.step()
            self.left -= 1

    def end(self) -> None:
        """End the epoch, and after the last one the training."""
        loss = self.steps.end()
        self._began = False
        if self.work.after_epoch is not None:
            self.work.after_epoch(Epoch(self.number, self.work.recipe.epochs, loss))
        epochs, last = self.work.recipe.epochs, is_last(self.work, self.number)
        self.number = epochs if last else self.number
        if self.entry is not None:
            self.entry.keep(self.number, epochs, partial(kept, self.steps, final=last))
        self.number += 1
        if self.is_done:
            self.steps.finish()
