"""WSN: weights and masks are learned together, and weights of earlier masks are frozen (Kang and others, 2022)."""

from grown.methods.wsn.method import WSN

__all__ = ["WSN"]
