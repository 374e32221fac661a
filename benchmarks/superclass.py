"""Every row of the README's CIFAR-100 Superclass table; see rows.py.

python benchmarks/superclass.py --data DIR --work DIR [--rows NAME ...] [--seeds 0 1 2] [--jobs 1] [--deadline S]
"""

from __future__ import annotations

from grown.bench.ablation import STEPS
from grown.bench.presets import BENCHMARKS, RECIPES
from rows import Row, Table, main

SMALL = ("--label", "small", "--set", "seed_size=0.11", "--set", "start_size=0.11", "--set", "grow=false")
# What Scratch gains from time: GROWN starts from what was learned before, so equal epochs are not equal chances.
EPOCHS = 2 * RECIPES[BENCHMARKS["cifar100-superclass"].recipe].epochs
LONGER = ("--method", "scratch", "--label", "twice-the-epochs", "--epochs", str(EPOCHS))


def _ablation(label: str) -> Row:
    return Row(
        ("--label", label, *(word for setting in STEPS[label] for word in ("--set", setting))), targets="scratch"
    )


TABLE = Table(
    "cifar100-superclass",
    "cifar100-superclass",
    tasks=20,
    classes=5,
    shape=(3, 32, 32),
    more=(
        ("small", Row(SMALL, targets="scratch")),
        ("longer", Row(LONGER)),
        ("equal-small", Row(("--method", "scratch", "--label", "equal-bytes-small"), bytes_of="small")),
        *((f"ablation-{on}", _ablation(label)) for on, label in enumerate(STEPS)),
    ),
    targets="targets",
)

if __name__ == "__main__":
    main({"superclass": TABLE}, __doc__ or "", seeds=[0, 1, 2])
