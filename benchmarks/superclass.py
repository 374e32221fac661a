"""Every row of the README's CIFAR-100 Superclass table; see rows.py.

python benchmarks/superclass.py --data DIR --work DIR [--rows NAME ...] [--seeds 0 1 2] [--jobs 1] [--deadline S]
"""

from __future__ import annotations

from grown.bench.ablation import STEPS
from rows import TARGETS, WHOLE, Row, Table, main, published, settings

HALF = ("seed_size=0.11", "start_size=0.11")  # of VGG16's width
SMALL = ("--label", "small", *settings("seed_size=0.0495", "start_size=0.0495", "grow=false"))
BEST = ("--label", "best", "--epochs", "120", *settings("early_epochs=4"))
# GROWN starts from what was learned before, so equal epochs are not equal chances: Scratch with three times as many, in
# which it sees more images than GROWN does in all, and Scratch on rotation labels in every task.
LONGER = ("--method", "scratch", "--epochs", "120", *settings("early=0"))
TURNS = ("--method", "scratch", *settings("turns=true"))
# Another network, which learns faster from nothing.
VGG16 = ("--backbone", "vgg16-bn-pool")
QUICK = ("--method", "scratch", "--label", "quick", *VGG16, "--width", "0.5", "--epochs", "120")
# Each at its own published schedule, to compare their times: the paper says that DEN and CPG take ten times GROWN's.
# All three in widths that suit a GPU, as the preset has it.
PLAIN = settings("margin=0", "early=0", *HALF)
PUBLISHED = ("--recipe", "paper", *VGG16, *WHOLE, *PLAIN)
# The paper's sizes, 1x being VGG16 without the 4096 layers: 0.3x after the first task, 1.5x in all.
CPG_ROOM = settings("max_size=0.657")
GROWN_ROOM = settings("seed_size=0.131", "max_size=0.657", "task_size=0.08")
# Accuracy over bytes: GROWN from a quarter of the width on, Scratch at every width with the epochs that it needs.
SIZES = (0.0124, 0.0495, 0.11, 0.1955, 0.44, 0.8, 1.5)
WIDTHS = (0.09, 0.125, 0.18, 0.25, 0.35, 0.5, 0.71)


def _ablation(label: str) -> Row:
    return Row(("--label", label, *settings(*STEPS[label])), targets=TARGETS)


def _sized(size: float) -> Row:
    sizes = (f"seed_size={size}", f"start_size={size}", f"max_size={max(size, 0.5)}", "grow=false")
    return Row(("--label", f"curve:{size}", *settings(*sizes)), targets=TARGETS)


def _wide(width: float) -> Row:
    return Row((*LONGER, "--label", f"curve:{width}", "--width", str(width)))


TABLE = Table(
    "cifar100-superclass",
    "cifar100-superclass",
    tasks=20,
    classes=5,
    shape=(3, 32, 32),
    more=(
        ("small", Row(SMALL, targets=TARGETS)),
        ("best", Row(BEST, targets=TARGETS)),
        ("longer", Row((*LONGER, "--label", "longer"))),
        ("equal-longer", Row((*LONGER, "--label", "equal-bytes-longer"), bytes_of="grown")),
        ("turns", Row((*TURNS, "--label", "turns"))),
        ("equal-turns", Row((*TURNS, "--label", "equal-bytes-turns"), bytes_of="grown")),
        ("quick", Row((*QUICK, *settings("reach=0.5", "early=0", "decide=0.05")))),
        *published(PUBLISHED, cpg=CPG_ROOM, anew=GROWN_ROOM).items(),
        ("equal-small", Row(("--method", "scratch", "--label", "equal-bytes-small"), bytes_of="small")),
        *((f"ablation-{on}", _ablation(label)) for on, label in enumerate(STEPS)),
        *((f"curve-grown-{size}", _sized(size)) for size in SIZES),
        *((f"curve-scratch-{width}", _wide(width)) for width in WIDTHS),
    ),
    targets="targets",
)

if __name__ == "__main__":
    main({"superclass": TABLE}, __doc__ or "")
