"""Whether the fused kernels can be used here."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import torch


@lru_cache(maxsize=1)
def fused() -> Any:
    """The module of fused kernels, or None where there is no GPU or no Triton; GROWN_FUSED=0 turns them off."""
    if not torch.cuda.is_available() or os.environ.get("GROWN_FUSED") == "0":
        return None
    try:
        from grown.nn import fused as kernels
    except ImportError:
        return None
    return kernels
