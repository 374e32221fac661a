"""What the methods have in common that train one network on and on."""

from grown.methods.shared.method import SharedMethod

__all__ = ["SharedMethod"]
