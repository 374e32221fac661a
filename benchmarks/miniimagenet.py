"""Every row of the README's mini-ImageNet table; see rows.py. `grown data miniimagenet --data DIR` decodes it first.

python benchmarks/miniimagenet.py --data DIR --work DIR [--rows scratch grown equal ...] [--seeds 0 1 2] [--jobs 1]
"""

from __future__ import annotations

from rows import TARGETS, Row, Table, main, settings

# From 0.05x, with room to grow in the first task and in every later one.
SMALL = ("--label", "small", *settings("seed_size=0.1", "start_size=0.05", "task_size=0.05", "step_size=0.05"))
TABLE = Table(
    "miniimagenet-20",
    "miniimagenet-20",
    tasks=20,
    classes=5,
    shape=(3, 84, 84),
    more=(("small", Row(SMALL, targets=TARGETS)),),
    targets="targets",
)

if __name__ == "__main__":
    main({"miniimagenet": TABLE}, __doc__ or "")
