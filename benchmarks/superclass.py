"""Every row of the README's CIFAR-100 Superclass table; see rows.py.

python benchmarks/superclass.py --data DIR --work DIR [--rows NAME ...] [--seeds 0 1 2] [--jobs 1] [--deadline S]
"""

from __future__ import annotations

from rows import Row, Table, main

PARTS = ("select", "sparse", "retrain")  # as the paper's ablation adds them
SMALL = ("--label", "small", "--set", "seed_size=0.11", "--set", "start_size=0.11", "--set", "grow=false")


def _ablation(on: int) -> Row:
    label = "grow-only" if on == 0 else f"+{PARTS[on - 1]}"
    off = [word for part in PARTS[on:] for word in ("--set", f"{part}=false")]
    return Row(("--label", f"ablation:{label}", *off), targets="scratch")


TABLE = Table(
    "cifar100-superclass",
    "cifar100-superclass",
    tasks=20,
    classes=5,
    shape=(3, 32, 32),
    more=(
        ("small", Row(SMALL, targets="scratch")),
        ("equal-small", Row(("--method", "scratch", "--label", "equal-bytes-small"), bytes_of="small")),
        *((f"ablation-{on}", _ablation(on)) for on in range(len(PARTS) + 1)),
    ),
    targets="targets",
)

if __name__ == "__main__":
    main({"superclass": TABLE}, __doc__ or "", seeds=[0, 1, 2])
