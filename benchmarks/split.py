"""Every row of the CIFAR-100 Split tables; see rows.py. A seed is one of the five random splits.

python benchmarks/split.py --data DIR --work DIR [--table parity | best] [--rows NAME ...] [--jobs 1] [--deadline S]

`parity` has the published recipe without augmentation, `best` a better one; their results do not stand in one table.
"""

from __future__ import annotations

from dataclasses import replace

from rows import Table, main

PARITY = Table("cifar100-split", "cifar100-split", tasks=10, classes=10, shape=(3, 32, 32), seeds=(0, 1, 2, 3, 4))
TABLES = {"parity": PARITY, "best": replace(PARITY, name="cifar100-split-best", options=("--recipe", "split-best"))}

if __name__ == "__main__":
    main(TABLES, __doc__ or "")
