"""The learning rate of each step, as a factor of the recipe's."""

from __future__ import annotations

import math

from grown.config import Recipe


def factor(recipe: Recipe, step: int, steps: int) -> float:
    """What the recipe's rate is multiplied by at this step."""
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "decay":
        return float(recipe.decay ** (step * recipe.epochs // steps))
    position = (step + 0.5) / steps
    if recipe.schedule == "steps":
        return 1.0 if position < 0.5 else 0.1 if position < 0.8 else 0.01
    if recipe.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * position))
    if position < recipe.warmup:
        return position / recipe.warmup
    return (1 - position) / max(1e-9, 1 - recipe.warmup)
