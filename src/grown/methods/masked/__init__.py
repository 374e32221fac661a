"""What the methods have in common that put masks on the kernels of one network."""

from grown.methods.masked.method import MaskedMethod

__all__ = ["MaskedMethod"]
