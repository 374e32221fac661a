"""Every row of the CIFAR-100 Split tables; see rows.py. A seed is one of the five random splits.

python benchmarks/split.py --data DIR --work DIR [--table parity | best] [--rows NAME ...] [--jobs 1] [--deadline S]

`parity` has the published recipe without augmentation, `best` a better one; their results do not stand in one table.
"""

from __future__ import annotations

from dataclasses import replace

from rows import TARGETS, Row, Table, main, settings

# The recipe's rate of scores is GROWN's choice; Grow's gates keep the one that they have on the other benchmarks.
GATES = ("--method", "grow", *settings("score_rate=0.01"))
GROW = Row(GATES, targets=TARGETS)
# Its sizes times 0.7, and PNN's columns times 0.73, which brings their bytes near GROWN's in the first table.
SMALLER = settings("seed_size=0.35", "task_size=0.14", "step_size=0.0545", "max_size=0.84")
SMALL = Row((*GATES, "--label", "equal-bytes", *SMALLER), targets=TARGETS)
NARROW = Row(("--method", "pnn", "--label", "equal-bytes", *settings("pnn_width=0.0425")), targets=TARGETS)
PARITY = Table(
    "cifar100-split",
    "cifar100-split",
    tasks=10,
    classes=10,
    shape=(3, 32, 32),
    more=(("grow", GROW), ("grow-equal", SMALL), ("pnn-equal", NARROW)),
    seeds=(0, 1, 2, 3, 4),
)
# As on the other benchmarks the first task of every method trains longer there, and on rotation labels.
LONGER = settings("early=1", "early_turns=true", "early_epochs=6")
BEST = replace(PARITY, name="cifar100-split-best", more=(("grow", GROW),), options=("--recipe", "split-best", *LONGER))
TABLES = {"parity": PARITY, "best": BEST}

if __name__ == "__main__":
    main(TABLES, __doc__ or "")
