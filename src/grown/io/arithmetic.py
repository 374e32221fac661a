"""What identifies the arithmetic of this process: where it is equal, equal networks give equal bits."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from pathlib import Path

import torch


@lru_cache(maxsize=1)
def here() -> str:
    """PyTorch's version, the kind of machine, its vector instructions, and a digest of the processor's type.

    A library may choose its algorithm by the processor's caches, so that equal instructions are not enough.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {platform.machine()} {capability}, processor {_processor()}"


def _processor() -> str:
    """A digest: which processor somebody has is nobody's business."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
        about = "\n".join(line for line in lines if line.split(":")[0].strip() in wanted)
    except OSError:  # not Linux
        about = ""
    return hashlib.sha256((about or platform.processor()).encode()).hexdigest()[:12]
