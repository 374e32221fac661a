"""GROWN, DEN and CPG on the embedded digits, each at its own published schedule, to compare their times; see rows.py.

python benchmarks/digits.py --data DIR --work DIR --device cpu [--seeds 0 1 2] [--jobs 1]

The paper says that DEN and CPG take ten times as long as GROWN. Epochs are those of CPG on CIFAR-100; digits are not
cropped or flipped, and no target may be missed by anything. DIR need not hold data: the digits ship with the package.
"""

from __future__ import annotations

from rows import Table, main, published, settings

CPG = ("cpg_prune_step=0.1", "cpg_prune_epochs=0.2", "cpg_retrain_epochs=0.3")  # the preset has shorter ones
PUBLISHED = ("--recipe", "paper", *settings("crop=0", "flip=false", "margin=0", *CPG))
TABLE = Table(
    "digits-methods",
    "digits",
    tasks=7,
    classes=10,
    shape=(1, 8, 8),
    more=tuple(published(PUBLISHED).items()),
)

if __name__ == "__main__":
    main({"digits": TABLE}, __doc__ or "")
