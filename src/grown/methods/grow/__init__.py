"""Grow: structured continuous sparsification with a frozen past (Yuan, Savarese and Maire, 2021)."""

from grown.methods.grow.method import Grow

__all__ = ["Grow"]
