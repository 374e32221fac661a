"""How often an image's task is inferred rightly, and how many unknown images are rejected, on the digits stream.

    python benchmarks/task_inference.py [--seeds 0 1 2] [--out FILE]

Each seed learns the seven tasks as `grown run` does; then the test images of each task are asked of the whole model.
Each upright digit is in two of the four upright tasks, which nothing can tell apart: "possible" is what an inference
reaches that knows each image's digit and view. Unknown images for a task are those of another view, or of other digits.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import grown
from grown.bench.presets import BENCHMARKS, recipe
from grown.data.digits import PLAN
from grown.methods.grown.features import LEVELS
from grown.methods.grown.inference import WAYS, answer
from grown.models import backbone

CONTENT = {name: (set(digits), view) for name, digits, view in PLAN}


def images_of(task: grown.Task) -> NDArray[np.uint8]:
    """Test images, channels last."""
    found: NDArray[np.uint8] = task.test.images.permute(0, 2, 3, 1).numpy()
    return found


def learn(seed: int, epochs: int | None) -> tuple[grown.Learner, list[grown.Task]]:
    """The digits stream as `grown run --seed` learns it."""
    preset = BENCHMARKS["digits"]
    how = recipe(preset.recipe)
    changed = how if epochs is None else grown.Recipe(**{**vars(how), "epochs": epochs})
    torch.manual_seed(seed)
    learner = grown.Learner(backbone(preset.backbone, channels=1), preset.config.replace(seed=seed, recipe=changed))
    tasks = grown.data.stream("digits")
    for task in tasks:
        learner.learn(task)
    return learner, tasks


def possible(task: grown.Task) -> float:
    """The share that is right if only the digit and the view are known, in percent."""
    digits, view = CONTENT[task.name]
    shares = [1 / sum(digit in other and view == seen for other, seen in CONTENT.values()) for digit in sorted(digits)]
    return 100 * statistics.mean(shares[label] for label in task.test.labels.tolist())


def rejected(learner: grown.Learner, task: str, images: NDArray[np.uint8], level: float) -> float:
    """The share of images that are none of a task's, in percent."""
    found = answer(learner, images, [task] * len(images))
    return 100 * statistics.mean(one.nearer is not None and one.nearer > level for one in found)


def measure(seed: int, epochs: int | None) -> list[dict[str, Any]]:
    """A row per task."""
    learner, tasks = learn(seed, epochs)
    rows = []
    for task in tasks:
        digits, view = CONTENT[task.name]
        strange = [other for other in tasks if CONTENT[other.name][1] != view or not CONTENT[other.name][0] & digits]
        unknown = np.concatenate([images_of(other) for other in strange])
        mine = images_of(task)
        rows.append(
            {
                "seed": seed,
                "task": task.name,
                "possible": possible(task),
                **{by: 100 * statistics.mean(got == task.name for got in learner.infer(mine, by)) for by in WAYS},
                "rejected": {
                    str(level): {
                        "known": rejected(learner, task.name, mine, level),
                        "unknown": rejected(learner, task.name, unknown, level),
                    }
                    for level in LEVELS
                },
            }
        )
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for seed in arguments.seeds for row in measure(seed, arguments.epochs)]
    columns = ("possible", *WAYS)
    for name in CONTENT:
        mine = [row for row in rows if row["task"] == name]
        print(f"{name:14}", *(f"{by} {statistics.mean(row[by] for row in mine):5.1f}" for by in columns))
    summary: dict[str, Any] = {by: statistics.mean(row[by] for row in rows) for by in columns}
    summary["rejected"] = {
        str(level): {kind: statistics.mean(row["rejected"][str(level)][kind] for row in rows) for kind in kinds}
        for level in LEVELS
        for kinds in [("known", "unknown")]
    }
    print("right, in percent:", *(f"{by} {summary[by]:.1f}" for by in columns))
    for level, found in summary["rejected"].items():
        print(f"--reject {level}: {found['known']:.1f}% of known, {found['unknown']:.1f}% of unknown images")
    if arguments.out is not None:
        about = {"torch": torch.__version__, "machine": platform.machine(), "seeds": arguments.seeds}
        arguments.out.write_text(json.dumps({"about": about, "summary": summary, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
