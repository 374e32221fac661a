"""Every row of the README's mini-ImageNet table; see rows.py. `grown data miniimagenet --data DIR` decodes it first.

python benchmarks/miniimagenet.py --data DIR --work DIR [--rows scratch grown equal ...] [--seeds 0 1 2] [--jobs 1]
"""

from __future__ import annotations

from rows import Table, main

TABLE = Table("miniimagenet-20", "miniimagenet-20", tasks=20, classes=5, shape=(3, 84, 84), targets="targets")

if __name__ == "__main__":
    main({"miniimagenet": TABLE}, __doc__ or "", seeds=[0, 1, 2])
