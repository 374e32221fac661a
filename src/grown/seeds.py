"""Random numbers that depend on what they are for, never on what was drawn before."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *purpose: object) -> int:
    """A 63-bit seed for one purpose, e.g. `derive(3, "task", 2, "order")`."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for one purpose."""
    source = torch.Generator(device=device)
    source.manual_seed(derive(seed, *purpose))
    return source
