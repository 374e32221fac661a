"""SI: a kernel weight is held by how much its own way lowered the loss of earlier tasks."""

from grown.methods.si.method import SI

__all__ = ["SI"]
