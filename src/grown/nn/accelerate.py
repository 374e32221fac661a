"""Whether the fused kernels can be used here, and how tensors lie in memory where they cannot."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


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


def fused_for(some: Tensor, *others: Tensor | None) -> Any:
    """The fused kernels, where tensors on a GPU have no gaps in memory and all lie alike in it; None elsewhere."""
    if not some.is_cuda or not _is_dense(some):
        return None
    alike = all(other is None or (other.is_cuda and other.stride() == some.stride()) for other in others)
    return fused() if alike else None


def _is_dense(values: Tensor) -> bool:
    """Whether these are all values in their stretch of memory, whatever their order."""
    return values.is_contiguous() or (values.ndim == 4 and values.is_contiguous(memory_format=torch.channels_last))


def conv_precision() -> torch.dtype:
    """What a convolution on a GPU computes in here."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float32


def channels_first(x: Tensor) -> Tensor:
    """Images or a convolution's weights as a CPU trains on them: channels first in memory, in their strides too.

    With one channel, or kernels of 1x1, both orders are the same numbers, and `contiguous` keeps strides that say
    "channels last". For these PyTorch's gradient of a strided 1x1 convolution writes beyond its end on a CPU with AVX2
    alone. What is on a GPU, or has no channels, stays as it is.
    """
    return x if x.is_cuda or x.ndim != 4 else x.clone(memory_format=torch.contiguous_format)
