"""Where data that does not ship is looked for."""

from __future__ import annotations

import os
from pathlib import Path


def given(root: str | Path | None) -> Path:
    """The folder that was named, else the one in the environment variable GROWN_DATA, else `data` here."""
    return Path(root if root is not None else os.environ.get("GROWN_DATA", "data"))
