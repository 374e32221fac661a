"""Every row of the README's CIFAR-100 Superclass table; see rows.py.

python benchmarks/superclass.py --data DIR --work DIR [--rows NAME ...] [--seeds 0 1 2] [--jobs 1] [--deadline S]
"""

from __future__ import annotations

from grown.bench.ablation import STEPS
from rows import Row, Table, main

SMALL = ("--label", "small", "--set", "seed_size=0.11", "--set", "start_size=0.11", "--set", "grow=false")


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
        ("equal-small", Row(("--method", "scratch", "--label", "equal-bytes-small"), bytes_of="small")),
        *((f"ablation-{on}", _ablation(label)) for on, label in enumerate(STEPS)),
    ),
    targets="targets",
)

if __name__ == "__main__":
    main({"superclass": TABLE}, __doc__ or "", seeds=[0, 1, 2])
