"""PackNet: train, prune, retrain, freeze; the next task trains what was pruned (Mallya and Lazebnik, 2018)."""

from grown.methods.packnet.method import PackNet

__all__ = ["PackNet"]
