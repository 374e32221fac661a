"""The learning rate of each step, as a factor of the recipe's."""

from __future__ import annotations

import math

from grown.config import Recipe


def factor(recipe: Recipe, step: int, steps: int, schedule: str | None = None) -> float:
    """What the recipe's rate is multiplied by at this step; by its own schedule, or by another."""
    schedule = recipe.schedule if schedule is None else schedule
    if schedule == "constant":
        return 1.0
    if schedule == "decay":
        return float(recipe.decay ** (step * recipe.epochs // steps))
    position = (step + 0.5) / steps
    if schedule == "steps":
        return 1.0 if position < 0.5 else 0.1 if position < 0.8 else 0.01
    if schedule == "picks":  # of masks alone: they are decided before the weights' rate falls for the last time
        return 1.0 if position < 0.5 else 0.2 if position < 0.7 else 0.0
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * position))
    if position < recipe.warmup:
        return position / recipe.warmup
    return (1 - position) / max(1e-9, 1 - recipe.warmup)
