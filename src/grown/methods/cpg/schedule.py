"""When CPG prunes how much: levels, the ramp within a level, and the room that tasks to come need."""

from __future__ import annotations

import dataclasses
import math

from grown.config import Config, Recipe
from grown.growth.budget import widths_within
from grown.methods.cpg.elements import Elements
from grown.nn.axes import Widths


def levels(config: Config) -> list[float]:
    """The pruned shares of a task's own weights, rising: 0.1, 0.2, ... 0.9, 0.95 as published."""
    steps = math.ceil(config.cpg_prune_most / config.cpg_prune_step - 1e-9)
    return [*(number * config.cpg_prune_step for number in range(1, steps)), config.cpg_prune_most]


def ramp(before: float, level: float, epoch: int, epochs: int) -> float:
    """The pruned share in this epoch (from 1) of a level whose share rises for so many epochs."""
    left = max(0.0, 1.0 - epoch / epochs)
    return level + (before - level) * left**3


def kept(count: int, share: float) -> int:
    """How many of so many weights of a layer are left once this share is pruned; one at least."""
    return min(count, max(1, round(count * (1.0 - share))))


def needed(left: int) -> float:
    """The share of what is free that one of `left` tasks must leave to the others, so that all get equal parts."""
    return 1.0 - 1.0 / left


def part_of(recipe: Recipe, epochs: float, rate: float) -> Recipe:
    """A shorter training at a lower, constant rate."""
    return dataclasses.replace(
        recipe, epochs=max(1, round(epochs * recipe.epochs)), rate=rate * recipe.rate, schedule="constant"
    )


def widening_plan(elements: Elements, config: Config, base: int) -> list[Widths]:
    """The present widths (the template's, at first) and then wider ones, up to the cap.

    After n widenings each width is the template's times the root of 1 + n x cpg_step. The cap is `max_size`; a template
    that is larger than that starts there.
    """
    channels, present = elements.channels, elements.widths
    most = config.max_size * base / elements.count(channels.template_widths())
    if most < 1.0:
        first = widths_within(channels, elements.banks, config.max_size * base)
        return [_at_least(first, present)]

    def scaled(size: float) -> Widths:
        factor = math.sqrt(size)
        return tuple(
            group.width if group.fixed else max(group.width, int(group.width * factor / group.unit + 1e-9) * group.unit)
            for group in channels.groups
        )

    widenings = math.ceil((most - 1.0) / config.cpg_step - 1e-9)
    sizes = [*(1.0 + number * config.cpg_step for number in range(widenings)), most] if widenings else [1.0]
    plan: list[Widths] = []
    for widths in (_at_least(scaled(size), present) for size in sizes):
        plan += [widths] if not plan or widths != plan[-1] else []
    return plan


def _at_least(widths: Widths, present: Widths) -> Widths:
    return tuple(max(pair) for pair in zip(widths, present, strict=True))
