"""Each benchmark's own settings, and each recipe, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from grown.config import Config, Recipe
from grown.errors import unknown

RECIPES: dict[str, Recipe] = {
    # `grown run`: hundreds of 8x8 images a task, seconds on one core.
    "small": Recipe(name="small", epochs=20, batch=32, rate=0.1, smoothing=0.1, score_rate=1e-2),
}


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark runs when nothing else is said."""

    backbone: str
    recipe: str
    config: Config
    about: str
    base_parameters: int | None = None  # 1x, where it is not the backbone's own


BENCHMARKS: dict[str, Benchmark] = {
    "digits": Benchmark(
        backbone="convnet",
        recipe="small",
        config=Config(threads=1, margin=1.0, expansions=2),
        about="embedded 8x8 handwritten digits in seven tasks, upright, turned and shuffled",
    ),
}


def benchmark(name: str) -> Benchmark:
    """A benchmark's preset by its name."""
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]


def recipe(name: str) -> Recipe:
    """A recipe by its name."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]
