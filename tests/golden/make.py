"""Writes the golden files of the present format: `python tests/golden/make.py`, once for each version, never again.

A golden file is kept for ever: every later release must read it. `expected.json` has what each of them answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import grown  # noqa: E402
from forging import LATER  # noqa: E402
from grown.io import container  # noqa: E402
from grown.io.versions import DELTA, MODEL  # noqa: E402
from grown.methods.grown import delta  # noqa: E402
from helpers import make_task, quick, shake  # noqa: E402


class Small(nn.Module):
    """A few layers of each kind that a file can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.side = nn.Conv2d(6, 6, 3, padding=1)
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.groups = nn.GroupNorm(3, 6)
        self.hidden = nn.Linear(12 * 4, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = nn.functional.max_pool2d(x + self.side(x), 4)
        x = torch.cat([x, self.groups(self.depth(x))], dim=1)
        return self.out(nn.functional.silu(self.hidden(x.flatten(1))))


# So that two tasks leave all that a file of the method can hold.
# Settings by which a method does within a few steps what it is there for.
SETTINGS: dict[str, dict[str, object]] = {
    "cpg": {"cpg_prune_most": 0.3, "cpg_train_goal": 0.0, "cpg_pick_rate": 0.01, "cpg_repick_rate": 0.01},
    "piggyback": {"piggyback_rate": 0.02},
    "ksm": {"ksm_rate": 0.02},
    "wsn": {"wsn_density": 0.1},
    "apd": {"apd_consolidate": 2, "apd_groups": 1, "apd_sparsity": 0.02},
    "den": {"den_loss": 0.0, "den_units": 3, "den_group": 1e-6},
}


def make(kind: str) -> grown.Learner:
    """A learner with three tasks, or a rival with two."""
    torch.manual_seed(0)
    if kind in grown.METHODS and kind != "grown":
        rival = grown.METHODS[kind](Small(), quick(**SETTINGS.get(kind, {})))
        tasks = [make_task(f"t{number}", each=4) for number in range(3)]
        if kind in ("joint", "pnn"):
            rival.foresee(tasks)
        for task in tasks[:2]:
            rival.learn(task)
            if kind == "cpg":  # the second task widens the network
                rival.configure(rival.config.replace(target=100.0, cpg_train_goal=100.0))
        return rival
    sizes = {"seed_size": 1.0, "task_size": 1.0, "step_size": 0.5, "max_size": 3.0}
    stored = {"kernel_format": "bf16"} if kind == "bf16" else {}
    learner = grown.Learner(Small(), quick(growth="open", soft_select=kind == "soft", **sizes, **stored))
    for number in range(3):
        stage = learner.open(make_task(f"t{number}", classes=3 + number, each=4))
        if number:
            stage.expand()
        shake(stage, seed=number)
        stage.commit(target=50.0)
        if kind == "features":
            learner.remember(stage.task)
    return learner


def main() -> None:
    torch.set_num_threads(1)
    path = HERE / "expected.json"
    expected = json.loads(path.read_text()) if path.exists() else {}
    for kind in ("grown", "soft", "bf16", "scratch", "finetune", "joint", "features", *LATER):
        name = f"v{MODEL.version}-{kind}.safetensors"
        if (HERE / name).exists():  # a golden file is never written again
            continue
        learner = make(kind)
        learner.save(HERE / name)
        x = torch.linspace(-2, 2, 2 * 64).view(2, 1, 8, 8)
        expected[name] = {
            task: [[round(value, 5) for value in row] for row in learner.network(task)(x).tolist()]
            for task in learner.tasks
        }
    path.write_text(json.dumps(expected, indent=1) + "\n")
    make_delta()


def make_delta() -> None:
    """What one more task adds to the golden model."""
    old, name = HERE / f"v{MODEL.version}-grown.safetensors", HERE / f"delta{DELTA.version}-grown.safetensors"
    if name.exists():
        return
    learner = grown.load(old)
    stage = learner.open(make_task("t3", each=4))
    shake(stage, seed=3)
    stage.commit(target=50.0)
    state = learner.state()
    new = container.parse(container.dump(state.tensors, state.meta))
    name.write_bytes(delta.diff(container.read_good(old), new))


if __name__ == "__main__":
    main()
