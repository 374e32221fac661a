"""Every row of the README's CIFAR-100 Superclass table; see rows.py.

python benchmarks/superclass.py --data DIR --work DIR [--rows NAME ...] [--seeds 0 1 2] [--jobs 1] [--deadline S]
"""

from __future__ import annotations

from grown.bench.ablation import STEPS
from grown.bench.presets import BENCHMARKS, RECIPES
from rows import TARGETS, WHOLE, Row, Table, main

SMALL = ("--label", "small", "--set", "seed_size=0.0495", "--set", "start_size=0.0495", "--set", "grow=false")
# What Scratch gains from time: GROWN starts from what was learned before, so equal epochs are not equal chances.
EPOCHS = 2 * RECIPES[BENCHMARKS["cifar100-superclass"].recipe].epochs
TURNS = ("--set", "turns=true")
QUICK = ("--backbone", "vgg16-bn-pool", "--width", "0.5", "--epochs", "80", "--set", "reach=0.5")
LONGER = ("--method", "scratch", "--label", "twice-the-epochs", "--epochs", str(EPOCHS))
# Each at its own published schedule, to compare their times: the paper says that DEN and CPG take ten times GROWN's.
PUBLISHED = (
    "--label",
    "published",
    "--recipe",
    "paper",
    *WHOLE,
    "--set",
    "margin=0",
    "--set",
    "width_multiple=1",
    "--set",
    "early=0",
)
CPG = ("--method", "cpg", *PUBLISHED, "--set", "max_size=0.657")


def _ablation(label: str) -> Row:
    return Row(("--label", label, *(word for setting in STEPS[label] for word in ("--set", setting))), targets=TARGETS)


TABLE = Table(
    "cifar100-superclass",
    "cifar100-superclass",
    tasks=20,
    classes=5,
    shape=(3, 32, 32),
    more=(
        ("small", Row(SMALL, targets=TARGETS)),
        ("longer", Row(LONGER)),
        ("turns", Row(("--method", "scratch", "--label", "turns", *TURNS))),
        ("equal-turns", Row(("--method", "scratch", "--label", "equal-bytes-turns", *TURNS), bytes_of="grown")),
        ("quick", Row(("--method", "scratch", "--label", "quick", *QUICK))),
        ("targets-published", Row(("--method", "scratch", *PUBLISHED))),
        ("grown-published", Row(PUBLISHED, targets="targets-published")),
        ("den-published", Row(("--method", "den", *PUBLISHED), targets="targets-published")),
        ("cpg-published", Row(CPG, targets="targets-published")),
        ("equal-small", Row(("--method", "scratch", "--label", "equal-bytes-small"), bytes_of="small")),
        *((f"ablation-{on}", _ablation(label)) for on, label in enumerate(STEPS)),
    ),
    targets="targets",
)

if __name__ == "__main__":
    main({"superclass": TABLE}, __doc__ or "", seeds=[0, 1, 2])
