"""PNN: progressive neural networks, a narrow column per task that reads all earlier ones (Rusu and others, 2016)."""

from grown.methods.pnn.method import PNN

__all__ = ["PNN"]
