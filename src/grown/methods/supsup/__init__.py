"""SupSup: a mask for each task on a random network that is never trained (Wortsman and others, 2020)."""

from grown.methods.supsup.method import SupSup

__all__ = ["SupSup"]
